"""`tocsin dev` with an application whose files change, as a process with its own NATS server."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.test_acceptance import Dev, environment, program
from tests.system.test_embedded_server import wait_until

EVERY_SECOND = "* * * * * *"
APP = f"""
import os
from tocsin import Tocsin
from .prices import PRICE

app = Tocsin("shop")


@app.job(schedule="{EVERY_SECOND}")
def price() -> int:
    return PRICE
"""
SLOW = """
import asyncio
from pathlib import Path
from tocsin import Context, Tocsin

VERSION = "first"
app = Tocsin("slow")


@app.job()
async def wait(context: Context) -> str:
    with Path("starts").open("a") as file:
        file.write(f"{VERSION} {context.execution_id} {context.attempt}\\n")
    while not Path("go").exists():
        await asyncio.sleep(0.05)
    return VERSION
"""
MORTAL = f"""
import os
from pathlib import Path
from tocsin import Tocsin

app = Tocsin("mortal")


@app.job(schedule="{EVERY_SECOND}")
def pid() -> int:
    if Path("die").exists():
        Path("die").unlink()
        os._exit(3)
    return os.getpid()
"""
BUSY = """
import os
from pathlib import Path
from tocsin import Tocsin

app = Tocsin("busy", shutdown_timeout=0.5)


@app.job(schedule="* * * * * *")
async def spin() -> None:
    Path("pid").write_text(str(os.getpid()))
    while True:
        pass
"""


@contextmanager
def developing(folder: Path, target: str, *more: str) -> Iterator[Dev]:
    command = [sys.executable, "-m", "tocsin", "dev", target, "-o", "json", "--port", "0", *(more or ["--ephemeral"])]
    with subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Dev(process)
        finally:
            process.kill()


def replace(path: Path, text: str) -> None:
    """Save a file as most editors do: another file takes its name."""
    other = path.with_name(f".{path.name}.swp")
    other.write_text(text)
    other.rename(path)


def completed(dev: Dev, job: str, result: object) -> None:
    dev.wait(
        lambda line: (
            (line.get("fact", {}).get("type"), line.get("fact", {}).get("job")) == ("completed", job)
            and line["fact"]["result"] == result
        )
    )


def is_alive(pid: int) -> bool:
    try:
        return "app_process" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Return the folder of a package with an application, a module beside it, and a handler that reads it."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "prices.py").write_text("PRICE = 1\n")
    (folder / "app.py").write_text(APP)
    return folder


@pytest.mark.timeout(300)  # eleven saves, each with a reload
def test_changed_files_run_as_they_are_saved(shop: Path) -> None:
    prices, app = shop / "prices.py", shop / "app.py"
    with developing(shop.parent, "shop/app.py:app") as dev:
        completed(dev, "price", 1)
        replace(prices, "PRICE = 2\n")  # the same second and size as before, for a cache of byte code
        assert dev.event("reload")["files"] == ["shop/prices.py"]
        completed(dev, "price", 2)

        prices.write_text("PRICE = 3\nif\n")
        error = dev.event("error")
        assert (error["file"], error["line"], error["code"]) == ("shop/prices.py", 2, "app-import-failed")
        assert "shop/prices.py:2: " in error["text"]
        completed(dev, "price", 2)
        prices.unlink()
        assert "No module named 'shop.prices'" in dev.event("error")["text"]
        completed(dev, "price", 2)

        (shop / "deep").mkdir()
        (shop / "deep" / "__init__.py").touch()
        (shop / "deep" / "values.py").write_text("VALUE = 4\n")
        prices.write_text("from .deep.values import VALUE as PRICE\n")
        dev.event("reload")
        completed(dev, "price", 4)
        for number in range(5, 30):
            (shop / "deep" / "values.py").write_text(f"VALUE = {number}\n")
        completed(dev, "price", 29)

        replace(app, APP.replace("def price", "def cost"))
        assert dev.event("reload")["summary"] == {"create": 1, "update": 0, "delete": 1, "unchanged": 0}
        completed(dev, "cost", 29)
        replace(app, APP.replace('schedule="', 'schedule="never '))
        error = dev.event("error")
        assert (error["file"], error["line"], error["code"]) == ("shop/app.py", 9, "invalid-definition")
        completed(dev, "cost", 29)
        shutil.rmtree(shop / "deep")
        dev.event("error")
        dev.ask(signal.SIGINT)
        dev.wait(lambda line: line.get("event") == "ending")
        assert dev.ended() == 0
        assert dev.errors() == ""


@pytest.mark.full
def test_running_task_finishes_in_its_version(tmp_path: Path) -> None:
    starts, file = tmp_path / "starts", tmp_path / "slow.py"
    file.write_text(SLOW)

    def started(version: str) -> Callable[[], bool]:
        return lambda: starts.exists() and version in starts.read_text()

    with developing(tmp_path, "slow:app") as dev:
        trigger = ("jobs", "trigger", "wait", "--nats", dev.url)
        assert program(*trigger, cwd=tmp_path).returncode == 0
        wait_until(started("first"))
        replace(file, SLOW.replace('"first"', '"second"').replace("app.job()", "app.job(lock=False)"))
        dev.event("reload")
        assert program(*trigger, cwd=tmp_path).returncode == 0
        wait_until(started("second"))
        (tmp_path / "go").touch()
        results = [dev.fact("completed", "wait")["fact"]["result"] for _ in range(2)]
        assert sorted(results) == ["first", "second"]
        versions, executions, attempts = zip(*(line.split() for line in starts.read_text().splitlines()), strict=True)
        assert (versions, len(set(executions)), attempts) == (("first", "second"), 2, ("1", "1"))


@pytest.mark.full
def test_process_of_the_application_ends_and_returns(tmp_path: Path) -> None:
    (tmp_path / "mortal.py").write_text(MORTAL)
    kept = ("--data-dir", str(tmp_path / "data"), "--no-reload")
    with developing(tmp_path, "mortal.py:app", *kept) as dev:
        first = dev.fact("completed", "pid")["fact"]["result"]
        (tmp_path / "die").touch()
        assert dev.wait(lambda line: line.get("exit_code") == 3)["event"] == "app"
        second = dev.wait(lambda line: line.get("fact", {}).get("result") not in {None, first})["fact"]["result"]
        assert is_alive(second)
        assert not is_alive(first)
        dev.ask(signal.SIGKILL)
        assert dev.ended() == -signal.SIGKILL
        wait_until(lambda: not is_alive(second))
    with developing(tmp_path, "mortal.py:app", *kept) as dev:
        assert next(line for line in dev.lines if line.get("event") == "app")["summary"]["unchanged"] == 1
        dev.fact("completed", "pid")
        (tmp_path / "mortal.py").write_text("app = 1")
        (tmp_path / "die").touch()
        assert "No version runs; restart `tocsin dev`" in dev.event("error")["text"]


@pytest.mark.full
def test_busy_process_ends_after_its_parent(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    with developing(tmp_path, "busy.py:app") as dev:
        wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
        busy = int((tmp_path / "pid").read_text())
        dev.ask(signal.SIGKILL)
        assert dev.ended() == -signal.SIGKILL
        wait_until(lambda: not is_alive(busy))


@pytest.mark.parametrize(
    ("text", "more", "complaint"),
    [
        ("\ndef", (), "app.py:2: app.py cannot be imported: SyntaxError"),
        ("app = 1", (), "app.py is not an application|app.py:app is not an application"),
        ("import os\nos._exit(7)", (), "the process ended with 7 while it imported app.py:app"),
        (None, (), "file app.py does not exist"),
        ("", ("--nats", "nats://127.0.0.1:9", "--port", "1"), "app.py has no `app`|--port is for a private server"),
    ],
)
def test_wrong_application_starts_no_server(
    text: str | None, more: tuple[str, ...], complaint: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "app.py").write_text(text)
    result = program("dev", "app.py:app", *more, "--data-dir", "data", cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert re.search(complaint, result.stderr), result.stderr
    assert not os.path.exists(tmp_path / "data" / "nats")  # noqa: PTH110 - a folder of the server


def test_reload_without_an_application_is_refused(tmp_path: Path) -> None:
    result = program("dev", "--reload", "--ephemeral", cwd=tmp_path)
    assert (result.returncode, "--reload is for an application" in result.stderr) == (2, True)
