"""Loading of a worker object: `package.module:attribute` or `path/to/file.py:attribute`."""

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
"""The attribute to load if the target names none."""


def load_worker(target: str) -> "Worker":
    """Import the worker that `target` names.

    Raises:
        UsageError: the module, file or attribute does not exist, the import fails, or the object is not a worker.
    """
    from ... import Worker  # noqa: PLC0415 - only commands that run one need it

    place, _, attribute = target.rpartition(":") if ":" in target else (target, "", ATTRIBUTE)
    module = _import(place)
    if not hasattr(module, attribute):
        raise UsageError(f"{place} has no `{attribute}`: name the worker as {place}:NAME", code="worker-not-found")
    candidate = getattr(module, attribute)
    if not isinstance(candidate, Worker):
        kind = type(candidate).__name__
        raise UsageError(
            f"{place}:{attribute} is not a worker but {kind!r}: name a `tocsin.Worker`, such as `worker = Worker()`",
            code="not-a-worker",
        )
    return candidate


def _import(place: str) -> ModuleType:
    if not place.endswith(".py") and ("/" in place or Path(place).is_file()):
        raise UsageError(
            f"{place} is not a Python file. Name the worker as FILE.py:NAME or package.module:NAME.",
            code="worker-not-found",
        )
    try:
        return _from_file(Path(place)) if place.endswith(".py") else _from_name(place)
    except UsageError:
        raise
    except Exception as error:
        reason = str(error).rstrip(".")
        raise UsageError(
            f"{place} cannot be imported: {type(error).__name__}: {reason}. Fix the error, or name another module.",
            code="worker-import-failed",
        ) from error


def _from_name(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # like `python -m`: find the modules of the project
    return importlib.import_module(name)


def _from_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"file {path} does not exist: check the path", code="worker-not-found")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.resolve().parent))  # like `python FILE`
    spec.loader.exec_module(module)
    return module
