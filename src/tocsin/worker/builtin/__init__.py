"""Built-in functions: work that a definition describes without code.

A worker offers those that `tocsin worker --builtin` names, and each does only what the worker's settings allow.

    command_rules      what a worker allows commands to do
    command            the function `tocsin.command`
    process            a command's process
    supervisor         the parent of a command's process: a program without Tocsin
    lines              the output of a process as lines of the execution
    http_request       the function `tocsin.http`
    guarded_network    the addresses that requests may reach
    sql                the functions `tocsin.sql` and `tocsin.procedure`
    database           transactions that can be cancelled
"""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Final

from ...settings.builtin import Builtin
from ..handlers import BuiltinFunction
from .command import CommandFunction
from .http_request import HttpFunction


def _sql() -> ModuleType:
    from . import sql  # noqa: PLC0415 - SQLAlchemy is in an extra

    return sql


BUILTINS: Final[Mapping[str, Callable[[Builtin], BuiltinFunction]]] = {
    "command": lambda settings: CommandFunction(settings.command),
    "http": lambda settings: HttpFunction(settings.http),
    "procedure": lambda settings: _sql().ProcedureFunction(settings.sql),
    "sql": lambda settings: _sql().SqlFunction(settings.sql),
}
"""What makes each built-in function of a worker's settings, by the name that `--builtin` takes."""

__all__ = ["BUILTINS"]
