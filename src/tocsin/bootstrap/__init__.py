"""The composition root: the only package that knows every part and connects the parts.

A name is imported from its module at its first use: a command line that only lists jobs loads neither the stages nor the
HTTP API.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .backups import create_backup, restore_backup
    from .installation import Installation, await_log, connect, is_set_up
    from .provision import health_target, initialize
    from .stage_runner import STAGE_NAMES, rebuild_history, run_stages
    from .workers import connect_worker, worker_connection

__all__ = [
    "STAGE_NAMES",
    "Installation",
    "await_log",
    "connect",
    "connect_worker",
    "create_backup",
    "health_target",
    "initialize",
    "is_set_up",
    "rebuild_history",
    "restore_backup",
    "run_stages",
    "worker_connection",
]

_MODULES: Final = {
    "backups": ("create_backup", "restore_backup"),
    "installation": ("Installation", "await_log", "connect", "is_set_up"),
    "provision": ("health_target", "initialize"),
    "stage_runner": ("STAGE_NAMES", "rebuild_history", "run_stages"),
    "workers": ("connect_worker", "worker_connection"),
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value
