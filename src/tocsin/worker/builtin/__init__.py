"""Built-in functions: work that a definition describes without code.

A worker offers the functions that `tocsin worker --builtin` names, within its settings. Settings that allow nothing
are a `SettingsError` at the start; everything that fails in a task is a `BuiltinFailure`.
"""

import os
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


def _container() -> ModuleType:
    # The client refuses to be imported without a home folder, for the default kubeconfig, which is never used here.
    if is_homeless := os.path.expanduser("~") == "~":  # noqa: PTH111 - pathlib raises an error
        os.environ["HOME"] = "/"
    try:
        import kubernetes.aio  # noqa: F401, PLC0415 - a missing extra is named at the start

        from . import container  # noqa: PLC0415 - few workers need it
    finally:
        if is_homeless:
            del os.environ["HOME"]  # handlers of this worker would take it for theirs
    return container


BUILTINS: Final[Mapping[str, Callable[[Builtin], BuiltinFunction]]] = {
    "command": lambda settings: CommandFunction(settings.command),
    "container": lambda settings: _container().ContainerFunction(settings.container),
    "http": lambda settings: HttpFunction(settings.http),
    "procedure": lambda settings: _sql().ProcedureFunction(settings.sql),
    "sql": lambda settings: _sql().SqlFunction(settings.sql),
}
"""What makes each built-in function of a worker's settings, by the name that `--builtin` takes."""
