"""The composition root: the only package that knows every part and connects the parts.

A name is imported from its module at its first use: a command line that only lists jobs loads neither the stages nor the
HTTP API.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..ports import Unreachable
    from .history_rebuild import rebuild_history
    from .installation import Installation, await_log, connect, is_set_up, names_of
    from .provision import durables_of, health_target, initialize
    from .queues import bridged_queues, own_queues
    from .stage_runner import run_stages
    from .stages import STAGES, compose
    from .worker_connection import connect_worker, worker_connection

__all__ = [
    "STAGES",
    "Installation",
    "Unreachable",
    "await_log",
    "bridged_queues",
    "compose",
    "connect",
    "connect_worker",
    "durables_of",
    "health_target",
    "initialize",
    "is_set_up",
    "names_of",
    "own_queues",
    "rebuild_history",
    "run_stages",
    "worker_connection",
]

_MODULES: Final = {
    "history_rebuild": ("rebuild_history",),
    "installation": ("Installation", "Unreachable", "await_log", "connect", "is_set_up", "names_of"),
    "provision": ("durables_of", "health_target", "initialize"),
    "queues": ("bridged_queues", "own_queues"),
    "stage_runner": ("run_stages",),
    "stages": ("STAGES", "compose"),
    "worker_connection": ("connect_worker", "worker_connection"),
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value
