"""The process of one version of an application: `python -m tocsin.cli.dev.app_process DESCRIPTOR TARGET`."""

import importlib.util
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..input.objects import load_app, package_of
from ..output.format import Output
from ..runtime.error_report import failure_of
from ..runtime.event_loop import refresh_timezones, serve
from ..runtime.session import Session
from .app_version import KILL_AFTER_S, Document, written
from .live import task_lines
from .source_files import is_source, source_folders

if TYPE_CHECKING:
    from ... import Tocsin


def main(descriptor: str, target: str) -> None:
    """Run one version of the application `target`."""
    control = socket.socket(fileno=int(descriptor))
    control.set_inheritable(False)  # a process of a handler must not keep it open
    # A cached file of the same second and size would be taken for the newest version.
    sys.dont_write_bytecode = True
    root = root_of(target)
    try:
        app = load_app(target)
        definitions = [definition.model_dump(mode="json", exclude_unset=True) for definition in app.definitions]
    except Exception as error:  # noqa: BLE001 - any error of the application's code is reported
        control.sendall(written({"error": _report(error, root), **_sources(root)}))
        return
    timeout = app.worker.options.shutdown_timeout
    report = {"owner": app.owner, "definitions": definitions, "shutdown_timeout_s": timeout, **_sources(root)}
    control.sendall(written(report))
    line = b""
    with suppress(ConnectionError), control.makefile("rb") as messages:
        line = messages.readline()
    if line.endswith(b"\n"):  # else `tocsin dev` has ended
        _work(app, control, json.loads(line))


def root_of(target: str) -> Path:
    """Return the folder below which an application's own modules are."""
    place = target.rpartition(":")[0] or target
    if place.endswith(".py"):
        return package_of(Path(place))[0]
    sys.path.insert(0, str(Path.cwd()))
    try:
        spec = importlib.util.find_spec(place.partition(".")[0])
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        return Path.cwd().resolve()
    origin = Path(spec.origin).resolve()
    return origin.parent.parent if spec.submodule_search_locations else origin.parent


def _sources(root: Path) -> Document:
    files = [
        file for module in list(sys.modules.values()) if isinstance(file := getattr(module, "__file__", None), str)
    ]
    return {"folders": [str(folder) for folder in source_folders(root, files)]}


def _report(error: BaseException, root: Path) -> Document:
    """Return an error as commands report it, with its line in the application."""
    failure = failure_of(error)
    place = next(_places(error, root), None)
    return {
        "text": failure.message,
        "exit_code": failure.code.value,
        "code": failure.error_code,
        "file": place and place[0],
        "line": place and place[1],
    }


def _places(error: BaseException, root: Path) -> Iterator[tuple[str, int | None]]:
    if error.__cause__ is not None:
        yield from _places(error.__cause__, root)
    if isinstance(error, SyntaxError) and error.filename:
        yield error.filename, error.lineno
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_source(Path(frame.filename).resolve(), root):
            yield frame.filename, frame.lineno


def _work(app: "Tocsin", control: socket.socket, permission: Document) -> None:
    os.environ.update(permission["environment"])  # for clients in handlers
    session = Session(
        output=Output(permission["format"]),
        config=Path(permission["config"]) if permission["config"] else None,
        options={tuple(path): value for path, value in permission["options"]},
        log_level=permission["log_level"],
        log_format=permission["log_format"],
    )
    session.log("error", tasks="info")
    app.worker.allow_secrets(permission["secrets"])
    within = app.worker.options.shutdown_timeout + KILL_AFTER_S
    threading.Thread(target=_end_with_parent, args=(control, within), daemon=True).start()
    serve(_serve(session, app), on_refresh=refresh_timezones)


async def _serve(session: Session, app: "Tocsin") -> None:
    is_live = session.log_level is None and not session.output.is_json
    async with session.installation(within=None, checked=False) as installation:
        with task_lines(session.output) if is_live else nullcontext():
            await session.backend.run_worker(installation, app.worker)


def _end_with_parent(control: socket.socket, within: float) -> None:
    """Stop this process as a signal does, once `tocsin dev` closes the connection.

    A handler may keep the event loop busy without a time limit. After `within` seconds the process ends without it.
    """
    with suppress(ConnectionError):
        while control.recv(1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(within)
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
