"""Finds a worker object by name: `package.module:attribute`, or `path/to/file.py:attribute`."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from ..runtime.errors import UsageError

if TYPE_CHECKING:
    from ...worker import Worker

ATTRIBUTE: Final = "worker"
"""What is looked for where no attribute is named."""


def load_worker(target: str) -> "Worker":
    """Import the worker that `target` names.

    Raises:
        UsageError: there is no such module, file or attribute, importing it fails, or it is no worker.
    """
    from ... import Worker  # noqa: PLC0415 - only commands that run one need it

    place, _, attribute = target.rpartition(":") if ":" in target else (target, "", ATTRIBUTE)
    module = _import(place)
    if not hasattr(module, attribute):
        raise UsageError(f"{place} has no `{attribute}`")
    found = getattr(module, attribute)
    if not isinstance(found, Worker):
        raise UsageError(f"{place}:{attribute} is no worker but {type(found).__name__!r}: write `worker = Worker()`")
    return found


def _import(place: str) -> ModuleType:
    try:
        return _from_file(Path(place)) if place.endswith(".py") else _from_name(place)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{place} cannot be imported: {type(error).__name__}: {error}") from error


def _from_name(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does, so that a project's own modules are found
    return importlib.import_module(name)


def _from_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.resolve().parent))  # as `python FILE` does
    spec.loader.exec_module(module)
    return module
