"""Built-in functions: work that a definition describes without code.

A worker offers those that `tocsin worker --builtin` names, and each does only what the worker's settings allow.

    command_rules      what a worker allows commands to do
    command            the function `tocsin.command`
    process            a command's process, as the worker sees it
    supervisor         the parent of a command's process: a program of its own, which imports nothing of Tocsin
    lines              the output of a process as lines of the execution
    http_request       the function `tocsin.http`
    guarded_network    the addresses that requests may reach
"""

from collections.abc import Callable, Mapping
from typing import Final

from ...settings.builtin import Builtin
from ..handlers import BuiltinFunction
from .command import CommandFunction
from .http_request import HttpFunction

BUILTINS: Final[Mapping[str, Callable[[Builtin], BuiltinFunction]]] = {
    "command": lambda settings: CommandFunction(settings.command),
    "http": lambda settings: HttpFunction(settings.http),
}
"""What makes each built-in function of a worker's settings, by the name that `--builtin` takes."""

__all__ = ["BUILTINS"]
