"""The root command: global options at any position, and an exit code for each failure."""

import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import typer
from typing_extensions import override

from ... import telemetry
from ..command_tree import COMMANDS, LazyGroup, tidy
from .errors import Exit

GLOBAL: Final = (
    "--nats",
    "--server",
    "--token",
    "--config",
    "--data-dir",
    "--root",
    "--output",
    "-o",
    "--log-level",
    "--log-format",
)
"""Global options; each takes a value."""


class Commands(LazyGroup):
    """The root group."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 - Typer's signature
        super().__init__(COMMANDS, **attributes)
        tidy(self)

    @override
    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        arguments = hoisted(sys.argv[1:] if args is None else args)
        telemetry.configure("error", is_deferred=True)  # forget the log level of an earlier call in this process
        try:
            code = super().main(arguments, prog_name or "tocsin", complete_var, standalone_mode=False, **extra)
        except Exception as error:  # noqa: BLE001 - every failure becomes an exit code
            sys.exit(_report(error, arguments))
        sys.exit(code if isinstance(code, int) else Exit.OK)


def hoisted(args: Sequence[str]) -> list[str]:
    """Move the global options to the front, where the parser expects them.

    Arguments after `--` stay in place, and so does `-o FILE`: commands with `--out` read it.
    """
    front: list[str] = []
    rest: list[str] = []
    remaining = list(args)
    while remaining:
        arg = remaining.pop(0)
        if arg == "--":
            rest += [arg, *remaining]
            break
        if arg == "-o" and remaining and _is_file(remaining[0]):
            rest += [arg, remaining.pop(0)]
        elif arg in GLOBAL and remaining:
            front += [arg, remaining.pop(0)]
        elif "=" in arg and arg.partition("=")[0] in GLOBAL:
            front.append(arg)
        else:
            rest.append(arg)
    return front + rest


def _is_file(value: str) -> bool:
    return "." in value or "/" in value


def _report(error: Exception, args: Sequence[str]) -> Exit:
    import json  # noqa: PLC0415 - only a failure needs them
    import traceback  # noqa: PLC0415

    from ...domain.text import printable_lines  # noqa: PLC0415
    from .error_report import failure_of  # noqa: PLC0415

    failure = failure_of(error)
    if _value(args, "--log-level") == "debug":
        traceback.print_exception(error)
    if "json" in (_value(args, "--output"), _value(args, "-o")):
        print(json.dumps(failure.as_json()), file=sys.stderr)
    # A group without a command has printed its help already, and a reader that closed the pipe has what it wanted.
    elif failure.message and failure.error_code != "output-closed":
        typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
        typer.echo(printable_lines(failure.message), err=True)
    telemetry.get_logger("tocsin.cli").debug("command failed", action="command-failed", code=failure.code.value)
    return failure.code


def _value(args: Sequence[str], option: str) -> str | None:
    """Return the last value of a global option, even if parsing failed."""
    value = None
    for arg, after in zip(args, (*args[1:], ""), strict=False):
        if arg == option and not (arg == "-o" and _is_file(after)):
            value = after
        elif arg.startswith(f"{option}="):
            value = arg.partition("=")[2]
    return value
