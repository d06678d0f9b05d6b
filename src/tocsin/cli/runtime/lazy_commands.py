"""Commands that are imported when they run or when help is printed."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from inspect import cleandoc
from typing import Any, Final, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typing_extensions import override

Command: TypeAlias = TyperCommand | TyperGroup

_PACKAGE: Final = "tocsin.cli"
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


class LazyCommands(MutableMapping[str, Any]):
    """The commands of one group: `[name]` imports a command."""

    def __init__(self, tree: Tree) -> None:
        self._tree = dict(tree)
        self._loaded: dict[str, Command] = {}

    @override
    def __getitem__(self, name: str) -> Command:
        if name not in self._loaded:
            self._loaded[name] = _load(name, self._tree[name])
        return self._loaded[name]

    @override
    def __setitem__(self, name: str, command: Command) -> None:
        self._loaded[name] = command

    @override
    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._tree)

    @override
    def __len__(self) -> int:
        return len(self._tree)


def _load(name: str, target: str | CommandGroup) -> Command:
    command = (
        LazyGroup(target.commands, name=name, help=target.help, no_args_is_help=True)
        if isinstance(target, CommandGroup)
        else _command(name, function_of(target))
    )
    command.epilog = command.epilog or HINT
    tidy(command)
    return command


def function_of(target: str) -> Callable[..., None]:
    """Import the function that runs a command."""
    module, _, function = target.partition(":")
    loaded: Callable[..., None] = getattr(import_module(f"{_PACKAGE}.{module}"), function)
    return loaded


def _command(name: str, function: Callable[..., None]) -> Command:
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    single.command(name)(function)
    command = typer.main.get_command(single)
    if not isinstance(command, TyperCommand):
        raise TypeError(f"{function.__qualname__} is not a single command")
    return command


def tidy(command: Command) -> None:
    """Wrap the help at the width of the terminal, and show no type for flags."""
    if command.help:
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in cleandoc(command.help).split("\n\n"))
    for option in (*command.params, command.get_help_option(typer.Context(command))):
        if isinstance(option, TyperOption) and option.is_flag:
            option.metavar = ""
