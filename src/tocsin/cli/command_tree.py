"""The commands of the program, imported at their first use, and the root command."""

import json
import re
import sys
import traceback
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from inspect import Signature, cleandoc, signature
from typing import Any, Final, NoReturn, TypeAlias, cast

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typing_extensions import override

from .. import telemetry
from ..domain.text import printable_lines
from .runtime.errors import Exit

Command: TypeAlias = TyperCommand | TyperGroup

_FILE: Final = re.compile("FILE|FOLDER|PLACE|MODULE")
"""A part of the metavar of an argument that names files."""
_GLOBAL: Final = {
    "--nats": "URL",
    "--server": "URL",
    "--token": "TOKEN",
    "--config": "FILE",
    "--data-dir": "FOLDER",
    "--root": "TOKEN",
    "--output": "table|json",
    "--log-level": "LEVEL",
    "--log-format": "FORMAT",
}
"""Global options, each with its value."""
GLOBAL: Final = frozenset(_GLOBAL) | {"-o"}
HINT: Final = "Before or after any command: " + " · ".join(f"{option} {value}" for option, value in _GLOBAL.items())


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """A group of commands, such as `tocsin jobs`."""

    help: str
    commands: "Tree"


Tree: TypeAlias = Mapping[str, str | CommandGroup]
"""Groups or `module:function` by name.

The path of a module is relative to `tocsin.cli`.
"""


class LazyGroup(TyperGroup):
    """A group of commands that imports each command at its first use."""

    def __init__(self, tree: Tree, **attributes: Any) -> None:  # noqa: ANN401 - Typer's signature
        super().__init__(**attributes)
        self.commands = LazyCommands(tree)

    @override
    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the tree, without importing the commands."""
        return list(self.commands)


class LazyCommands(UserDict[str, Any]):
    """The commands of one group: `[name]` imports a command."""

    @override
    def __getitem__(self, name: str) -> Command:
        entry = self.data[name]
        if isinstance(entry, str | CommandGroup):
            self.data[name] = _load(name, entry)
        command: Command = self.data[name]
        return command


def _load(name: str, target: str | CommandGroup) -> Command:
    command = (
        LazyGroup(target.commands, name=name, help=target.help, no_args_is_help=True)
        if isinstance(target, CommandGroup)
        else _command(name, target)
    )
    command.epilog = command.epilog or HINT
    tidy(command)
    return command


def _command(name: str, target: str) -> Command:
    module, _, function_name = target.partition(":")
    function: Callable[..., None] = getattr(import_module(f"tocsin.cli.{module}"), function_name)
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    single.command(name)(_with_session(function))
    return cast("TyperCommand", typer.main.get_command(single))


def _with_session(function: Callable[..., None]) -> Callable[..., None]:
    """Pass the session of the context to a function with the parameter `session`."""
    first, *options = signature(function).parameters.values()
    if first.name != "session":
        return function

    @wraps(function)
    def command(context: typer.Context, **given: object) -> None:
        function(context.obj, **given)

    context = first.replace(name="context", annotation=typer.Context)
    command.__signature__ = Signature([context, *options])  # type: ignore[attr-defined] # `inspect` reads it
    return command


def tidy(command: Command) -> None:
    """Prepare the help and the texts of arguments of a command."""
    if command.help:
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in cleandoc(command.help).split("\n\n"))
    for option in (*command.params, command.get_help_option(typer.Context(command))):
        if isinstance(option, TyperOption) and option.is_flag:
            option.metavar = ""
    for parameter in command.params:
        parameter.callback = parameter.callback or _check_text


def _check_text(_: object, parameter: Any, value: Any) -> Any:  # noqa: ANN401 - Typer's signature
    """Refuse bytes that are no characters, which Python reads as halves of surrogate pairs.

    The name of a file may have any bytes.
    """
    for text in value if isinstance(value, list | tuple) else (value,):
        is_file_name = _FILE.search(parameter.metavar or "") and not str(text).startswith(("{", "["))
        if isinstance(text, str) and not is_file_name and text != text.encode(errors="replace").decode():
            encoding = sys.getfilesystemencoding()
            raise typer.BadParameter(
                f"it has bytes that are no characters in the encoding of this locale ({encoding}). "
                "Write it in UTF-8, and set a UTF-8 locale, such as LC_ALL=C.UTF-8."
            )
    return value


def _group(help_text: str, *targets: str) -> CommandGroup:
    """Return a group of `module:function function …`; a command has the name of its function."""
    tree = dict[str, str]()
    for module, _, functions in (target.partition(":") for target in targets):
        for function in functions.split():
            name = function.partition("_")[0] if function.startswith(("list_", "set_")) else function.replace("_", "-")
            tree[name] = f"{module}:{function}"
    return CommandGroup(help_text, tree)


COMMANDS: Final[Tree] = {
    "dev": "dev.command:dev",
    "init": "installation.commands:init",
    "run": "processes.commands:run",
    "serve": "processes.commands:serve",
    "worker": "processes.commands:worker",
    "apply": "jobs.apply:apply_app",
    "jobs": _group(
        "Named jobs and their schedules.",
        "jobs.commands:list_jobs show trigger pause resume delete",
        "jobs.apply:apply diff",
        "jobs.commands:export",
        "jobs.history:history rollback",
    ),
    "triggers": _group("The events that start executions of jobs.", "triggers:test ignored"),
    "sql": "jobs.sql:sql",
    "import": _group("Job files from the schedules of other programs.", "imports:crontab kubernetes celery airflow"),
    "backfill": "jobs.schedule:backfill",
    "schedule": "jobs.schedule:schedule",
    "what-if": "jobs.what_if:what_if",
    "executions": _group("Executions of jobs.", "executions.commands:list_executions show logs cancel"),
    "dead-letters": _group(
        "Executions and messages that failed for good.", "dead_letters:list_dead_letters show replay resolve replay_all"
    ),
    "agents": _group("Registered worker processes.", "agents:list_agents show drain disable enable allow revoke"),
    "queues": _group("Queues of tasks for workers.", "queues:list_queues show pause resume purge"),
    "shards": _group("The parts into which work is divided.", "shards:list_shards apply"),
    "namespaces": _group(
        "The parts of an installation that belong to different teams.", "namespaces:list_namespaces show apply"
    ),
    "policy": _group("Limits for the whole installation.", "policy:show set_policy"),
    "history": CommandGroup(
        "The read model of executions, which lists are read from.", {"rebuild": "installation.commands:rebuild_history"}
    ),
    "events": _group(
        "The events of the log.", "events.commands:tail export", "events.replay:replay", "events.commands:audit_trail"
    ),
    "tokens": _group("Tokens for the HTTP API.", "installation.tokens:create list_tokens revoke"),
    "keys": _group("The key that signs the ledger and the log.", "installation.keys:create show"),
    "silences": _group("Times in which notifications are not sent.", "silences:start list_silences end"),
    "notifications": CommandGroup(
        "Messages to people and programs about jobs.",
        {"list": "notifications:list_notifications", "test": "notifications:send_test"},
    ),
    "tz": _group("The time-zone data.", "installation.commands:refresh"),
    "why": "jobs.why:why",
    "audit": "events.audit:audit",
    "repair": "installation.repair:repair",
    "backup": _group("Copies of the whole installation.", "backup:create verify restore"),
    "explain": "jobs.schedule:explain",
    "config": CommandGroup("The settings.", {"show": "installation.commands:show_config"}),
    "status": "installation.status:status",
    "top": "top.command:top",
    "stats": "installation.status:stats",
    "doctor": "installation.status:doctor",
    "support-bundle": "installation.support_bundle:support_bundle",
    "permissions": "installation.commands:permissions",
    "version": "installation.commands:version",
}
"""By name, in the order of the help: a group, or `module:function` with a module path below `tocsin.cli`."""


class Commands(LazyGroup):
    """The root group: global options at any position, and an exit code for each failure."""

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
    from .runtime.error_report import failure_of  # noqa: PLC0415 - only a failure needs it

    failure = failure_of(error)
    if _value(args, "--log-level") == "debug":
        traceback.print_exception(error)
    if "json" in (_value(args, "--output"), _value(args, "-o")):
        print(json.dumps(failure.as_json()), file=sys.stderr)
    # A group without a command has printed its help already, and a reader that closed the pipe needs no more.
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
