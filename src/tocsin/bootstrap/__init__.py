"""The composition root: the only package that knows every part and connects the parts.

A name is imported from its module at its first use: a command line that only lists jobs loads neither the stages nor the
HTTP API.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..ports import Unreachable
    from .backups import create_backup, restore_backup
    from .in_memory import InMemoryInstallation, connect_in_memory, open_in_memory, run_stages_in_memory
    from .installation import Installation, Ports, await_log, connect, is_set_up, names_of
    from .process_metrics import process_metrics_served
    from .provision import durables_of, health_target, initialize, installed_stages
    from .stage_runner import STAGE_NAMES, compose, context_of, rebuild_history, run_stages
    from .workers import connect_worker, worker_connection

__all__ = [
    "STAGE_NAMES",
    "InMemoryInstallation",
    "Installation",
    "Ports",
    "Unreachable",
    "await_log",
    "compose",
    "connect",
    "connect_in_memory",
    "connect_worker",
    "context_of",
    "create_backup",
    "durables_of",
    "health_target",
    "initialize",
    "installed_stages",
    "is_set_up",
    "names_of",
    "open_in_memory",
    "process_metrics_served",
    "rebuild_history",
    "restore_backup",
    "run_stages",
    "run_stages_in_memory",
    "worker_connection",
]

_MODULES: Final = {
    "backups": ("create_backup", "restore_backup"),
    "in_memory": ("InMemoryInstallation", "connect_in_memory", "open_in_memory", "run_stages_in_memory"),
    "installation": ("Installation", "Ports", "Unreachable", "await_log", "connect", "is_set_up", "names_of"),
    "process_metrics": ("process_metrics_served",),
    "provision": ("durables_of", "health_target", "initialize", "installed_stages"),
    "stage_runner": ("STAGE_NAMES", "compose", "context_of", "rebuild_history", "run_stages"),
    "workers": ("connect_worker", "worker_connection"),
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value
