"""Objects of the user's programs that commands run: workers and applications."""

import importlib
import importlib.util
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from ...domain.definition import DefinitionError
from ..runtime.errors import UsageError

if TYPE_CHECKING:
    from ... import Tocsin
    from ...worker import Worker

_Kind: TypeAlias = Literal["worker", "app"]


class LoadedWorker(NamedTuple):
    """A worker, and the application that it belongs to, if it does."""

    worker: "Worker"
    app: "Tocsin | None" = None


def load_worker(target: str) -> LoadedWorker:
    """Import the worker, or the application with a worker, that `target` names."""
    from ... import Tocsin, Worker  # noqa: PLC0415 - only commands that run one need it

    candidate = _loaded(target, "worker")
    if isinstance(candidate, Tocsin):
        return LoadedWorker(candidate.worker, candidate)
    if not isinstance(candidate, Worker):
        raise UsageError(
            f"{target} is not a worker but {type(candidate).__name__!r}: name a `tocsin.Worker`, such as `worker = Worker()`, or a "
            "`tocsin.Tocsin`",
            code="not-a-worker",
        )
    return LoadedWorker(candidate)


def load_app(target: str) -> "Tocsin":
    """Import the application that `target` names."""
    from ... import Tocsin  # noqa: PLC0415 - only commands that run one need it

    candidate = _loaded(target, "app")
    if not isinstance(candidate, Tocsin):
        raise UsageError(
            f'{target} is not an application but {type(candidate).__name__!r}: name a `tocsin.Tocsin`, such as `app = Tocsin("billing")`',
            code="not-an-app",
        )
    return candidate


def _loaded(target: str, kind: _Kind) -> object:
    place, _, attribute = target.rpartition(":") if ":" in target else (target, "", kind)
    module = _import(place, kind)
    if not hasattr(module, attribute):
        raise _not_found(kind, f"{place} has no `{attribute}`: name the {kind} as {place}:NAME")
    return getattr(module, attribute)


def _import(place: str, kind: _Kind) -> ModuleType:
    if not place.endswith(".py") and ("/" in place or Path(place).is_file()):
        raise _not_found(kind, f"{place} is not a Python file. Name the {kind} as FILE.py:NAME or package.module:NAME.")
    from ...app import AppError  # noqa: PLC0415 - only commands that import a module need these
    from ...app.application import importing  # noqa: PLC0415

    try:
        # The module must not run its application, nor write into the command's answer.
        with importing(), redirect_stdout(sys.stderr):
            return _from_file(Path(place), kind) if place.endswith(".py") else _from_name(place)
    except (UsageError, DefinitionError, AppError):
        raise
    except (Exception, SystemExit) as error:
        reason = str(error).rstrip(".")
        raise UsageError(
            f"{place} cannot be imported: {type(error).__name__}: {reason}. Fix the error, or name another module.",
            code="worker-import-failed" if kind == "worker" else "app-import-failed",
        ) from error


def _not_found(kind: _Kind, message: str) -> UsageError:
    return UsageError(message, code="worker-not-found" if kind == "worker" else "app-not-found")


def _from_name(name: str) -> ModuleType:
    if "" not in sys.path:
        _find_modules_in(Path.cwd())  # like `python -m`: find the modules of the project
    return importlib.import_module(name)


def _from_file(path: Path, kind: _Kind) -> ModuleType:
    if not path.is_file():
        raise _not_found(kind, f"file {path} does not exist: check the path")
    _find_modules_in(path.resolve().parent)  # like `python FILE`
    folder, package = package_of(path)
    if package:
        _find_modules_in(folder)
        return importlib.import_module(".".join(package if path.stem == "__init__" else (*package, path.stem)))
    # A module with the name `__main__` would run as a program.
    name = "main" if path.stem == "__main__" else path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def package_of(path: Path) -> tuple[Path, tuple[str, ...]]:
    """Return the folder above a file's packages, and the names of these."""
    folder, names = path.resolve().parent, list[str]()
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        names.insert(0, folder.name)
        folder = folder.parent
    return folder, tuple(names)


def _find_modules_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
