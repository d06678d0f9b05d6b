"""The root of all commands: takes the global options wherever they stand, and ends every failure in its exit code."""

import json
import sys
import traceback
from collections.abc import Sequence
from inspect import cleandoc
from typing import Any, Final, NoReturn

import structlog
import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typing_extensions import override

from ... import telemetry
from .error_report import failure_of
from .exit_codes import Exit

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
"""Options of the whole program; each takes a value."""

HINT: Final = (
    "Before or after any command: --nats URL · --server URL · --token TOKEN · --config FILE · --data-dir FOLDER · --root TOKEN · --output table|json · "
    "--log-level LEVEL · --log-format FORMAT"
)


class Commands(TyperGroup):
    """The root group."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 - Typer's signature
        super().__init__(**attributes)
        _mention_global_options(self)

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
        """Run one command and exit."""
        given = hoisted(sys.argv[1:] if args is None else args)
        telemetry.configure("error")  # until the options are read: whatever fails before writes no line of its own kind
        try:
            code = super().main(given, prog_name or "tocsin", complete_var, standalone_mode=False, **extra)
        except Exception as error:  # noqa: BLE001 - here every failure becomes an exit code
            sys.exit(_tell(error, given))
        sys.exit(code if isinstance(code, int) else Exit.OK)


def hoisted(args: Sequence[str]) -> list[str]:
    """The arguments with the global options in front, where the parser expects them; what stands behind `--` is left."""
    front: list[str] = []
    rest: list[str] = []
    left = list(args)
    while left:
        arg = left.pop(0)
        if arg == "--":
            rest += [arg, *left]
            break
        if arg in GLOBAL and left:
            front += [arg, left.pop(0)]
        elif "=" in arg and arg.partition("=")[0] in GLOBAL:
            front.append(arg)
        else:
            rest.append(arg)
    return front + rest


def _tell(error: Exception, args: Sequence[str]) -> Exit:
    failure = failure_of(error)
    if _value(args, "--log-level") == "debug":
        traceback.print_exception(error)
    if "json" in (_value(args, "--output"), _value(args, "-o")):
        print(json.dumps(failure.as_json(), ensure_ascii=False), file=sys.stderr)
    elif failure.message:  # a group without a command has shown its help, and has nothing to add
        typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
        typer.echo(failure.message, err=True)
    structlog.get_logger("tocsin.cli").debug("a command failed", action="command-failed", code=failure.code.value)
    return failure.code


def _value(args: Sequence[str], option: str) -> str | None:
    """What an option was given, known even where parsing failed; the last one counts."""
    found = None
    for arg, after in zip(args, (*args[1:], ""), strict=False):  # there may be none
        if arg == option:
            found = after
        elif arg.startswith(f"{option}="):
            found = arg.partition("=")[2]
    return found


def _tidy(command: object) -> None:
    """Break the lines of the help where the terminal ends, and show no type with what takes no value."""
    if not isinstance(command, TyperCommand | TyperGroup):
        return
    if command.help:
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in cleandoc(command.help).split("\n\n"))
    for option in (*command.params, command.get_help_option(typer.Context(command))):
        if isinstance(option, TyperOption) and option.is_flag:
            option.metavar = ""


def _mention_global_options(group: TyperGroup) -> None:
    _tidy(group)
    for command in group.commands.values():
        command.epilog = command.epilog or HINT
        _tidy(command)
        if isinstance(command, TyperGroup):
            _mention_global_options(command)
