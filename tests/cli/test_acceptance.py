"""The program as a process with its own NATS server: it starts, works, and stops on request."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from socket import socket
from typing import Any

import pytest

from tests.system import forked
from tests.system.test_embedded_server import session_is_empty, wait_until
from tocsin.settings import Metrics

DEADLINE = 300.0
"""Seconds after which a test gives up waiting. On a busy machine a process takes over a minute to start."""

JOBS = """
jobs:
  - { name: quick, schedule: "* * * * * *", function: quick }
  - name: broken
    schedule: "* * * * * *"
    function: broken
    dead_letter: true
    retry: { max_attempts: 2, initial_delay: 100ms }
  - { name: slow, function: slow }
"""

WORKER = """
import asyncio
from tocsin import Worker

worker = Worker(shutdown_timeout=60)

@worker.task("quick")
async def quick(context): ...

@worker.task("broken")
async def broken(context):
    raise ConnectionError("no route")

@worker.task("slow")
async def slow(context):
    await asyncio.sleep(context.input.get("seconds", 0))
"""

Wanted = Callable[[dict[str, Any]], bool]


class Dev:
    """A running `tocsin dev`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.lines: list[dict[str, Any]] = []
        self.url: str = self.wait(lambda line: line.get("event") == "tocsin")["nats_url"]
        self.wait(lambda line: line.get("event") == "ready")

    def wait(self, wanted: Wanted) -> dict[str, Any]:
        """The first line from here on that is wanted."""
        while True:
            line = self._lines.get(timeout=DEADLINE)
            if line is None:
                raise AssertionError(f"it ended with {self._process.wait()}: {self.errors()}")
            self.lines.append(json.loads(line))
            if wanted(self.lines[-1]):
                return self.lines[-1]

    def event(self, name: str) -> dict[str, Any]:
        return self.wait(lambda line: line.get("event") == name)

    def fact(self, kind: str, job: str) -> dict[str, Any]:
        return self.wait(lambda line: line.get("fact", {}).get("type") == kind and line["fact"]["job"] == job)

    def ask(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ended(self) -> int:
        return self._process.wait(DEADLINE)

    def errors(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.read()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError):  # the test has ended, and closed it
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put(None)


def program(*args: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return forked.call(args, environment=environment(**more), folder=cwd, patience_s=DEADLINE)


def environment(**more: str) -> dict[str, str]:
    """No settings of the machine that the tests run on."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("TOCSIN_", "NATS_", "DATABASE_"))}
    return {**ours, **more}


@contextmanager
def running(folder: Path, *more: str, worker: str | None = "work.py:worker", **variables: str) -> Iterator[Dev]:
    (folder / "jobs.yaml").write_text(JOBS)
    (folder / "work.py").write_text(WORKER)
    args = ["dev", "--jobs", "jobs.yaml", "-o", "json", *(["--worker", worker] if worker else [])]
    args += [*(more or ["--ephemeral"]), *([] if "--nats" in more else ["--port", "0"])]
    with subprocess.Popen(
        [sys.executable, "-m", "tocsin", *args],
        cwd=folder,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Dev(process)
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_dev_runs_the_jobs_and_ends_in_order(number: signal.Signals, tmp_path: Path) -> None:
    begun = datetime.now(UTC)
    with running(tmp_path) as dev:
        first = dev.wait(lambda line: "fact" in line)["fact"]
        # Nothing ran before, so nothing was missed; on a busy machine, the first instants may come before the stages lead.
        assert first["type"] != "passed" or datetime.fromisoformat(first["start"]) > begun - timedelta(seconds=1)
        dev.fact("completed", "quick")
        failed = dev.fact("failed", "broken")["fact"]
        assert failed["error"]["type"] == "ConnectionError"
        dev.fact("dead-lettered", "broken")
        dev.ask(signal.SIGUSR1)  # new time-zone data ends nothing
        dev.fact("completed", "quick")
        dev.ask(number)
        dev.wait(lambda line: line.get("event") == "ending")
        assert dev.ended() == 0
        assert dev.errors() == ""


@pytest.mark.full
def test_dev_moves_its_default_metrics_port_when_taken(tmp_path: Path) -> None:
    with socket() as squatter:
        with suppress(OSError):  # another process has taken it
            squatter.bind(("127.0.0.1", Metrics().port))
            squatter.listen()
        with running(tmp_path, TOCSIN_SERVER__PORT="0") as dev:
            dev.ask(signal.SIGTERM)
            assert dev.ended() == 0


@pytest.mark.full
def test_dev_says_what_an_ephemeral_one_keeps(nats_url: str, tmp_path: Path) -> None:
    def kept(dev: Dev) -> str:
        text: str = next(line for line in dev.lines if line.get("event") == "tocsin")["text"]
        return text.partition(f" on {dev.url}, ")[2]

    with running(tmp_path, worker=None) as dev:
        assert kept(dev) == "nothing is kept"
    prefixes = {
        f"TOCSIN_{name}": f"kept-{name.split('_')[0].lower()}" for name in ("ROOT", "PUBLIC_PREFIX", "TRIGGER_PREFIX")
    }
    with running(tmp_path, "--ephemeral", "--nats", nats_url, worker=None, **prefixes) as dev:
        assert kept(dev) == "which keeps its streams; the history is not kept"


def test_dev_says_that_tasks_wait_for_a_worker(tmp_path: Path) -> None:
    with running(tmp_path, worker=None) as dev:
        assert program("jobs", "trigger", "slow", "--nats", dev.url, cwd=tmp_path).returncode == 0
        waits = dev.event("queue")
        assert (waits["queue"], waits["text"]) == (
            "default",
            "tasks of queue `default` wait without a worker: run `tocsin worker …`, or pass an application, --worker or --builtin",
        )
        dev.ask(signal.SIGTERM)
        assert dev.ended() == 0


def test_dev_names_the_function_without_a_worker(tmp_path: Path) -> None:
    (tmp_path / "typo.yaml").write_text("jobs: [{name: typo, function: slov}]")
    with running(tmp_path, "--ephemeral", "--jobs", "typo.yaml") as dev:
        assert program("jobs", "trigger", "typo", "--nats", dev.url, cwd=tmp_path).returncode == 0
        waits = dev.wait(lambda line: line.get("event") == "queue" and line["function"] is not None)
        assert (waits["queue"], waits["function"]) == ("default", "slov")
        assert "did you mean `slow`?" in waits["text"]
        dev.ask(signal.SIGTERM)
        assert dev.ended() == 0


def test_dev_runs_work_without_code(tmp_path: Path) -> None:
    (tmp_path / "sql.yaml").write_text(
        "jobs:\n- {name: figures, schedule: '@every 1s', sql: {connection: dwh, statement: 'SELECT :a AS a', "
        "parameters: {a: '${env:DWH_KEY}'}, max_rows: 1}}\n"
    )
    url = f"sqlite:///{tmp_path}/own.db"
    more = ("--ephemeral", "--jobs", "sql.yaml", "--builtin", "sql", "--secret", "DWH_KEY")
    variables = {"DWH_KEY": "hunter22"}
    with running(tmp_path, *more, worker=None, TOCSIN_BUILTIN__SQL__CONNECTIONS__DWH__URL=url, **variables) as dev:
        result = dev.fact("completed", "figures")["fact"]["result"]
        assert (result["rows_affected"], result["rows"]) == (1, [{"a": "${env:DWH_KEY}"}])
        dev.ask(signal.SIGTERM)
        assert dev.ended() == 0


def test_dev_is_visible_and_changeable_from_outside(tmp_path: Path) -> None:
    with running(tmp_path) as dev:

        def ask(*args: str) -> Any:  # noqa: ANN401 - JSON
            result = program(*args, "--nats", dev.url, "-o", "json", cwd=tmp_path)
            assert result.returncode == 0, result.stderr
            return json.loads(result.stdout)

        assert [job["name"] for job in ask("jobs", "list")] == ["broken", "quick", "slow"]
        execution_id = ask("jobs", "trigger", "slow")["execution_id"]
        assert dev.fact("completed", "slow")["fact"]["execution_id"] == execution_id
        shown = ask("executions", "show", execution_id)
        assert (shown["status"], shown["trigger"], len(shown["attempts"])) == ("completed", "manual", 1)
        assert ask("jobs", "pause", "quick")["changed"]
        dev.fact("paused", "quick")
        assert program("jobs", "diff", "-f", "jobs.yaml", "--nats", dev.url, cwd=tmp_path).returncode == 0


@pytest.mark.full
def test_dev_run_can_be_audited_explained_and_kept(tmp_path: Path) -> None:
    with running(tmp_path) as dev:

        def ask(*args: str) -> Any:  # noqa: ANN401 - JSON
            result = program(*args, "--nats", dev.url, "-o", "json", cwd=tmp_path)
            assert result.returncode == 0, result.stdout + result.stderr
            return json.loads(result.stdout)

        letter = dev.fact("dead-lettered", "broken")["fact"]
        done = dev.fact("completed", "quick")["fact"]
        report = ask("audit")
        assert (report["clean"], report["violations"], report["remarks"]) == (True, [], [])
        assert report["executions"] >= 2
        assert "I8" in ask("audit", "--history")["invariants"]

        [answer] = ask("why", "quick", done["scheduled_time"])
        assert (answer["verdict"], answer["execution_id"]) == ("fired", done["execution_id"])
        assert answer["outcome"]["status"] == "completed"
        [answer] = ask("why", "broken", letter["scheduled_time"])
        assert (answer["outcome"]["status"], answer["outcome"]["attempts"]) == ("failed", 2)
        assert answer["outcome"]["error"] == "ConnectionError: no route"
        [answer] = ask("why", "quick", "2020-01-01T00:00:00.5Z")
        assert answer["verdict"] == "before-the-job"

        exported = ask("events", "export", "--out", "log.jsonl.gz")
        assert exported["messages"] == sum(exported["streams"].values()) > 0
        ask("events", "replay", "--execution", done["execution_id"])
    # From here on the server is gone, and the file gives the same result.
    offline = ("--file", "log.jsonl.gz", "-o", "json", "--nats", "nats://127.0.0.1:9")
    result = program("audit", *offline, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["facts"] >= exported["messages"]  # one event may tell several facts
    shown = json.loads(program("events", "replay", "--execution", done["execution_id"], *offline, cwd=tmp_path).stdout)
    assert (shown["status"], [fact["fact"]["type"] for fact in shown["facts"]][-1]) == ("completed", "completed")
    moment = json.loads(program("events", "replay", *offline, cwd=tmp_path).stdout)
    assert moment["jobs"] == {"active": 2, "on demand": 1}


def test_dev_finishes_its_work_unless_interrupted_twice(tmp_path: Path) -> None:
    with running(tmp_path) as dev:
        trigger = ("jobs", "trigger", "slow", "--nats", dev.url, "--input")
        assert program(*trigger, '{"seconds": 60}', cwd=tmp_path).returncode == 0
        dev.fact("admitted", "slow")
        dev.ask(signal.SIGTERM)
        dev.wait(lambda line: line.get("event") == "ending")
        dev.ask(signal.SIGTERM)
        assert dev.ended() == 5


@pytest.mark.full
def test_dev_cluster_survives_a_node_and_leaves_none(tmp_path: Path) -> None:
    with running(tmp_path, "--cluster", "3", "--data-dir", str(tmp_path / "kept")) as dev:
        nodes = next(line for line in dev.lines if line.get("event") == "cluster")["nodes"]
        assert dev.url == ",".join(node["url"] for node in nodes)
        dev.fact("completed", "quick")
        os.kill(nodes[1]["pid"], signal.SIGKILL)
        said = [dev.event("node")["text"] for _ in range(3)]
        assert said[0] == "node-2 ended by signal 9"
        heir = int(said[1].removeprefix("node-2 started again, pid "))
        assert said[2].startswith("node-2 has caught up")
        dev.fact("completed", "quick")
        dev.ask(signal.SIGKILL)
        assert dev.ended() == -signal.SIGKILL
        for pid in (nodes[0]["pid"], heir, nodes[2]["pid"]):
            wait_until(lambda pid=pid: session_is_empty(pid))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (("--cluster", "4"), "4 nodes are not supported"),
        (("--cluster", "3", "--nats", "nats://a:1"), "omit --cluster or --nats"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(more: tuple[str, ...], complaint: str, tmp_path: Path) -> None:
    result = program("dev", *more, cwd=tmp_path)
    assert result.returncode == 2
    assert complaint in result.stderr


def test_without_a_server_a_command_ends_with_4(tmp_path: Path) -> None:
    result = program("jobs", "list", "--nats", "nats://127.0.0.1:9", cwd=tmp_path)
    assert result.returncode == 4
    assert result.stderr.startswith("error: no NATS server answers at")
    assert "Traceback" not in result.stderr
