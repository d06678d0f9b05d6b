"""The commands of the program, imported when they run or when help is printed."""

import re
import sys
from collections import UserDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from inspect import Signature, cleandoc, signature
from typing import Any, Final, TypeAlias, cast

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typing_extensions import override

Command: TypeAlias = TyperCommand | TyperGroup

_PACKAGE: Final = "tocsin.cli"
_FILE: Final = re.compile("FILE|FOLDER|PLACE|MODULE")
"""A part of the metavar of an argument that names files."""
HINT: Final = (
    "Before or after any command: --nats URL · --server URL · --token TOKEN · --config FILE · --data-dir FOLDER · --root TOKEN · --output table|json · "
    "--log-level LEVEL · --log-format FORMAT"
)


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
    function: Callable[..., None] = getattr(import_module(f"{_PACKAGE}.{module}"), function_name)
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    single.command(name)(_with_session(function))
    return cast("TyperCommand", typer.main.get_command(single))


def _with_session(function: Callable[..., None]) -> Callable[..., None]:
    """Pass the session of the context to a function whose first parameter is `session`."""
    first, *options = signature(function).parameters.values()
    if first.name != "session":
        return function
    from .runtime.session import session_of  # noqa: PLC0415 - `tocsin --version` needs none

    @wraps(function)
    def command(context: typer.Context, **given: object) -> None:
        function(session_of(context), **given)

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


def _tree(*targets: str) -> Tree:
    """Return a group of `module:function function …`; a command has the name of its function."""
    tree = dict[str, str]()
    for module, _, functions in (target.partition(":") for target in targets):
        for function in functions.split():
            name = function.partition("_")[0] if function.startswith(("list_", "set_")) else function.replace("_", "-")
            tree[name] = f"{module}:{function}"
    return tree


_JOBS: Final = _tree(
    "jobs.commands:list_jobs show trigger pause resume delete",
    "jobs.apply:apply diff",
    "jobs.commands:export",
    "jobs.history:history rollback",
)
_EXECUTIONS: Final = _tree("executions.commands:list_executions show logs cancel")
_DEAD_LETTERS: Final = _tree("dead_letters:list_dead_letters show replay resolve replay_all")
_EVENTS: Final = _tree("events.commands:tail export", "events.replay:replay", "events.commands:audit_trail")
_AGENTS: Final = _tree("agents:list_agents show drain disable enable allow revoke")
_QUEUES: Final = _tree("queues:list_queues show pause resume purge")
_SHARDS: Final = _tree("shards:list_shards apply")
_POLICY: Final = _tree("policy:show set_policy")
_NAMESPACES: Final = _tree("namespaces:list_namespaces show apply")
_SILENCES: Final = _tree("silences:start list_silences end")
_TOKENS: Final = _tree("installation.tokens:create list_tokens revoke")
_IMPORTS: Final = _tree("imports:crontab kubernetes celery airflow")
_BACKUP: Final = _tree("backup:create verify restore")
_KEYS: Final = _tree("installation.keys:create show")

COMMANDS: Final[Tree] = {
    "dev": "dev.command:dev",
    "init": "installation.commands:init",
    "run": "processes.commands:run",
    "serve": "processes.commands:serve",
    "worker": "processes.commands:worker",
    "apply": "jobs.apply:apply_app",
    "jobs": CommandGroup("Named jobs and their schedules.", _JOBS),
    "triggers": CommandGroup(
        "The events that start executions of jobs.",
        {"test": "triggers:test", "ignored": "triggers:ignored"},
    ),
    "sql": "jobs.sql:sql",
    "import": CommandGroup("Job files from the schedules of other programs.", _IMPORTS),
    "backfill": "jobs.schedule:backfill",
    "schedule": "jobs.schedule:schedule",
    "what-if": "jobs.what_if:what_if",
    "executions": CommandGroup("Executions of jobs.", _EXECUTIONS),
    "dead-letters": CommandGroup("Executions and messages that failed for good.", _DEAD_LETTERS),
    "agents": CommandGroup("Registered worker processes.", _AGENTS),
    "queues": CommandGroup("Queues of tasks for workers.", _QUEUES),
    "shards": CommandGroup("The parts into which work is divided.", _SHARDS),
    "namespaces": CommandGroup("The parts of an installation that belong to different teams.", _NAMESPACES),
    "policy": CommandGroup("Limits for the whole installation.", _POLICY),
    "history": CommandGroup(
        "The read model of executions, which lists are read from.", {"rebuild": "installation.commands:rebuild_history"}
    ),
    "events": CommandGroup("The events of the log.", _EVENTS),
    "tokens": CommandGroup("Tokens for the HTTP API.", _TOKENS),
    "keys": CommandGroup("The key that signs the ledger and the log.", _KEYS),
    "silences": CommandGroup("Times in which notifications are not sent.", _SILENCES),
    "notifications": CommandGroup(
        "Messages to people and programs about jobs.",
        {"list": "notifications:list_notifications", "test": "notifications:send_test"},
    ),
    "tz": CommandGroup("The time-zone data.", {"refresh": "installation.commands:refresh"}),
    "why": "jobs.why:why",
    "audit": "events.audit:audit",
    "repair": "installation.repair:repair",
    "backup": CommandGroup("Copies of the whole installation.", _BACKUP),
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
