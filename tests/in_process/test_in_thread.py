"""An application in a background thread, in web applications without an event loop."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import httpx
import pytest
from typing_extensions import override

from tests.system.running import DEADLINE
from tocsin import Context, Tocsin
from tocsin.app.application import AlreadyRunning
from tocsin.app.in_thread import AppThread
from tocsin.client import ClientClosed, WrongContext
from tocsin.settings import Metrics, Server, Settings
from tocsin.worker import event_loop

DAY: Final = "2026-03-08"


class ThreadingServer(ThreadingMixIn, WSGIServer):
    """A server that answers each request in a thread of its own."""

    daemon_threads = True


class SilentHandler(WSGIRequestHandler):
    """A handler that writes no line for each request."""

    @override
    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def served(web: Callable[..., Any]) -> Iterator[str]:
    """Serve a WSGI application."""
    with make_server("127.0.0.1", 0, web, ThreadingServer, SilentHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def web_of(name: str) -> tuple[Callable[..., Any], AppThread]:
    """Start an example, and return its web application and its scheduler."""
    module = import_module(f"examples.{name}")
    if name == "flask_app":
        before = set(threads())
        web = module.create_app()
        [scheduler] = set(threads()) - before
        return web, scheduler
    return module.application, module.scheduler


def threads() -> list[AppThread]:
    """Return the applications that run in threads."""
    from tocsin.app.in_thread import _open  # noqa: PLC0415 - the test looks at what runs

    return list(_open)


@pytest.mark.parametrize("name", ["flask_app", "django_app"])
def test_web_application_runs_its_jobs(name: str) -> None:
    web, scheduler = web_of(name)
    with scheduler, served(web) as url, httpx.Client(base_url=url, timeout=DEADLINE) as client:
        assert client.post(f"/reports/{DAY}").json() == {"report": {"day": DAY, "rows": 3}}
        with ThreadPoolExecutor(4) as pool:
            answers = [answer.json() for answer in pool.map(client.get, ["/reports"] * 4)]
        assert [answer["errors"] for answer in answers] == [0] * 4
        assert all(answer["next"].endswith("+00:00") for answer in answers)
        assert client.get(f"/reports/{DAY}").status_code == 405
        assert client.post("/reports/someday").status_code == 400
    with pytest.raises(ClientClosed):
        scheduler.jobs()


def application(kind: str, folder: Path) -> Tocsin:
    app = Tocsin.in_memory("shop") if kind == "memory" else Tocsin.embedded("shop", data_dir=folder)

    @app.job()
    def greet(context: Context, name: str) -> str:
        return f"{context.job} {name}"

    return app


def assert_no_thread_stays(before: set[threading.Thread]) -> None:
    """Wait for the threads of handlers, which end by themselves once they are idle."""
    started = set(threading.enumerate()) - before
    for thread in started:
        thread.join(DEADLINE)
    assert [thread for thread in started if thread.is_alive()] == []


@pytest.mark.parametrize("kind", ["memory", "embedded"])
def test_application_starts_and_stops_in_any_thread(kind: str, tmp_path: Path) -> None:
    app = application(kind, tmp_path)
    before = set(threading.enumerate())
    for _ in range(2):  # also a second time, after its end
        with ThreadPoolExecutor(1) as other:
            scheduler = other.submit(app.start).result()
        assert scheduler.trigger("greet", {"name": "Ada"}).result(DEADLINE) == "greet Ada"
        assert scheduler.url is None
        with pytest.raises(AlreadyRunning):
            app.start()
        scheduler.close()
        scheduler.close()
    assert_no_thread_stays(before)


def test_api_runs_in_the_thread(tmp_path: Path) -> None:
    settings = Settings(server=Server(port=0), metrics=Metrics(port=0))
    with Tocsin.embedded("shop", data_dir=tmp_path, settings=settings).start(server=True) as scheduler:
        assert scheduler.url is not None
        assert httpx.get(f"{scheduler.url}/v1/jobs").json()["jobs"] == []


def test_failed_start_raises_and_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    app, before = application("embedded", file / "data"), set(threading.enumerate())
    for _ in range(2):
        with pytest.raises(Exception, match="cannot be used"):
            app.start()
    assert_no_thread_stays(before)


def test_two_threads_start_it_once(tmp_path: Path) -> None:
    app = application("memory", tmp_path)
    barrier = threading.Barrier(4)

    def start() -> AppThread | None:
        barrier.wait()
        with suppress(AlreadyRunning):
            return app.start()
        return None

    with ThreadPoolExecutor(4) as pool:
        answers = [answer.result() for answer in [pool.submit(start) for _ in range(4)]]
    [scheduler] = [answer for answer in answers if answer is not None]
    scheduler.close()


def test_forked_process_must_start_its_own(tmp_path: Path) -> None:
    app = application("memory", tmp_path)
    with app.start() as scheduler:
        child = os.fork()
        if child == 0:
            errors = 0
            for call in (app.start, scheduler.jobs):
                try:
                    call()
                except WrongContext:
                    errors += 1
            os._exit(errors)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
        assert scheduler.trigger("greet", {"name": "Ada"}).result(DEADLINE) == "greet Ada"


def test_handler_cannot_stop_its_own_application(tmp_path: Path) -> None:
    app = application("memory", tmp_path)
    threads_: list[AppThread] = []

    @app.job()
    async def stop() -> str:
        with pytest.raises(WrongContext):
            threads_[0].close()
        return "refused"

    with app.start() as scheduler:
        threads_.append(scheduler)
        assert scheduler.trigger("stop").result(DEADLINE) == "refused"


@pytest.mark.timeout(120)
def test_stubborn_handler_does_not_keep_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop, "END_S", 0.1)
    app = Tocsin.in_memory("shop", shutdown_timeout=0)
    began = threading.Event()

    @app.job()
    async def never() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                began.set()
                await asyncio.sleep(0.05)

    scheduler = app.start()
    _ = scheduler.trigger("never")
    assert began.wait(DEADLINE)
    scheduler.close()
    with app.start() as again:
        assert again.job_count() == 1


PROGRAM: Final = """
import sys
import threading

from tocsin import Context, Tocsin

app = Tocsin.embedded("shop", data_dir=sys.argv[1])
began, pause = threading.Event(), threading.Event()

@app.job()
def slow(context: Context) -> str:
    began.set()
    while not context.shutting_down:
        pause.wait(0.01)
    return "ended"

run = app.start().trigger("slow")  # nothing keeps the application
began.wait()
print(run.execution_id, file=sys.stderr)
if sys.argv[2] == "error":
    raise SystemExit(3)
"""


@pytest.mark.parametrize(("end", "code"), [("normal", 0), ("error", 3)])
def test_end_of_the_program_stops_it_in_order(end: str, code: int, tmp_path: Path) -> None:
    program = [sys.executable, "-c", PROGRAM, str(tmp_path / "data"), end]
    finished = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == code, finished.stderr
    execution_id = finished.stderr.strip()
    with Tocsin.embedded("shop", data_dir=tmp_path / "data").start() as scheduler:  # the folder is free again
        assert scheduler.run(execution_id, job="slow").result(DEADLINE) == "ended"


INTERRUPTED: Final = """
import asyncio
import signal
import sys
import threading
from contextlib import suppress

from tocsin import Context, Tocsin

app = Tocsin.embedded("shop", data_dir=sys.argv[1], shutdown_timeout=600)
began = threading.Event()

@app.job()
async def slow(context: Context) -> None:
    began.set()
    await context.shutting_down.wait()
    print("stopping", flush=True)
    while sys.argv[2] == "printing":
        print("stubborn" * 99, flush=True)  # a daemon thread that holds the lock of stdout at the end aborts Python
        await asyncio.sleep(0)
    await asyncio.Event().wait()

async def main() -> None:
    async with app.running():
        run = await app.trigger(slow)
        print("execution", run.execution_id, flush=True)
        await asyncio.to_thread(began.wait)
        print("began", flush=True)
        await asyncio.Event().wait()

def forgotten() -> None:
    run = app.start().trigger("slow")
    print("execution", run.execution_id, flush=True)
    began.wait()
    print("began", flush=True)
    threading.Event().wait()

signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
with suppress(KeyboardInterrupt):
    asyncio.run(main()) if sys.argv[2] == "loop" else forgotten()
"""


@pytest.mark.parametrize(
    ("kind", "interrupt", "code"),
    [
        ("loop", signal.SIGINT, 0),
        ("thread", signal.SIGINT, 0),
        ("printing", signal.SIGINT, 0),
        ("printing", signal.SIGTERM, 7),
    ],
)
def test_second_interrupt_ends_the_program(kind: str, interrupt: signal.Signals, code: int, tmp_path: Path) -> None:
    command = [sys.executable, "-E", "-c", INTERRUPTED, str(tmp_path / "data"), kind]  # not with PYTHONUNBUFFERED
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        execution_id = next(line.split()[1] for line in program.stdout if line.startswith("execution "))
        for moment in ("began\n", "stopping\n"):
            assert moment in program.stdout
            time.sleep(0.5)  # an interrupt in the handler's own code is a failure of the handler
            program.send_signal(interrupt)
        _, errors = program.communicate(timeout=120)
    assert (program.returncode, "Traceback" in errors) == (code, False), errors
    with Tocsin.embedded("shop", data_dir=tmp_path / "data").start() as scheduler:
        assert scheduler.run(execution_id, job="slow").status() == "running"  # its task was not lost


async def test_application_runs_beside_an_event_loop(tmp_path: Path) -> None:
    app = application("memory", tmp_path)
    scheduler = await asyncio.to_thread(app.start)
    run = await asyncio.to_thread(scheduler.trigger, "greet", {"name": "Ada"})
    assert await asyncio.to_thread(run.result, DEADLINE) == "greet Ada"
    await asyncio.to_thread(scheduler.close)
