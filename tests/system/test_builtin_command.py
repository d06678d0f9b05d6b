"""Commands on a real server: from the job file to the result, with their lines; and a worker that is killed."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.system.running import running
from tests.worker.builtin.given import PYTHON, has_number, is_alive, number_in, until
from tocsin import Worker, subjects
from tocsin.domain.events import Cancelled, CancelRequest, Completed, Dispatched, Failed, Started
from tocsin.services.operations.execution_output import read_output
from tocsin.services.operations.lookup import find
from tocsin.settings.builtin import CommandRules
from tocsin.worker.builtin.command import CommandFunction

ROWS = "import json, sys; print('counting', file=sys.stderr); print(json.dumps({'rows': len(json.load(sys.stdin))}))"
SHELL = str(Path("/bin/sh").resolve())


def command_worker(folder: Path) -> Worker:
    worker = Worker()
    rules = CommandRules(programs=(PYTHON,), interpreters=(SHELL,), directories=(str(folder.resolve()),))
    worker.offer("tocsin.command", CommandFunction(rules))
    return worker


async def test_steps_run_commands_with_results_of_others(nats_url: str, tmp_path: Path) -> None:
    job = {
        "name": "report",
        "input": {"a": 1},
        "dag": [
            {"name": "count", "command": {"argv": [PYTHON, "-I", "-c", ROWS], "result": "json"}},
            {
                "name": "show",
                "depends_on": ["count"],
                "command": {
                    "argv": [PYTHON, "-I", "-c", "import sys; print(sys.argv[1])", "{{ upstream.count.rows }} rows"],
                    "result": "last_line",
                },
            },
        ],
    }
    async with running(nats_url, tmp_path, worker=command_worker(tmp_path)) as tocsin:
        await tocsin.apply(job)
        await tocsin.trigger("report", input={"b": 2, "command": ["/bin/sh"], "builtin": {"argv": ["/bin/sh"]}})
        [completed] = await tocsin.ended("report", Completed)
        assert completed.result == "4 rows"

        async def lines() -> set[tuple[str, str]]:
            output = await read_output(tocsin.log, await find(tocsin.log, completed.execution_id))
            return found if len(found := {(line.step, line.text) for line in output.lines}) == 3 else set()

        assert await tocsin.until(lines) == {("count", "counting"), ("count", '{"rows": 4}'), ("show", "4 rows")}


async def test_failure_and_only_task_carry_the_command(nats_url: str, tmp_path: Path) -> None:
    job = {"name": "broken", "command": {"script": "echo no disk >&2; exit 4", "retryable_exit_codes": [75]}}
    async with running(nats_url, tmp_path, worker=command_worker(tmp_path)) as tocsin:
        await tocsin.apply(job | {"overlap_policy": "allow"})
        await tocsin.trigger("broken")
        [failed] = await tocsin.ended("broken", Failed)
        tasks = [r.message for r in await tocsin.log.read("execution.>") if isinstance(r.message, Dispatched)]
        assert [task.task.builtin for task in tasks] == [job["command"]]
        assert failed.error is not None
        assert failed.error.type == "exit_code_4"


async def test_cancelled_execution_ends_its_command(nats_url: str, tmp_path: Path) -> None:
    script = "trap '' TERM; echo $$ > own; while :; do sleep 0.05; done"
    async with running(nats_url, tmp_path, worker=command_worker(tmp_path)) as tocsin:
        await tocsin.apply({"name": "endless", "command": {"script": script, "grace": "300ms"}})
        await tocsin.trigger("endless")
        await until(lambda: has_number(tmp_path / "own"))
        [started] = await tocsin.ended("endless", Started)
        subject = subjects.cancel("endless", started.execution_id)
        await tocsin.log.publish(subject, CancelRequest(), message_id="cancel")
        await tocsin.ended("endless", Cancelled)
        await until(lambda: not is_alive(number_in(tmp_path / "own")))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are observed in /proc")
async def test_command_of_killed_worker_ends_and_runs_again(nats_url: str, tmp_path: Path) -> None:
    """`tocsin worker --builtin command` as a process: kill -9 leaves nothing, and another worker repeats the attempt."""
    script = "echo $$ >> runs; if [ $(wc -l < runs) -gt 1 ]; then exit 0; fi; while :; do sleep 0.05; done"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TOCSIN_")},
        "TOCSIN_NATS__URL": nats_url,
        "TOCSIN_BUILTIN__COMMAND__INTERPRETERS": f'["{SHELL}"]',
        "TOCSIN_BUILTIN__COMMAND__DIRECTORIES": f'["{tmp_path}"]',
    }
    async with running(nats_url, tmp_path) as tocsin:
        tocsin.patience = 90  # an agent is lost after 30 seconds of silence
        environment["TOCSIN_ROOT"] = tocsin.settings.root
        await tocsin.apply({"name": "again", "command": {"script": script, "grace": "300ms"}})
        await tocsin.trigger("again")
        first = await builtin_worker(environment)
        await until(lambda: has_number(tmp_path / "runs"))
        own = number_in(tmp_path / "runs")
        first.send_signal(signal.SIGKILL)
        await first.wait()
        await until(lambda: not is_alive(own))
        second = await builtin_worker(environment)
        await tocsin.ended("again", Completed)
        assert len((tmp_path / "runs").read_text().split()) == 2
        second.send_signal(signal.SIGTERM)
        assert await second.wait() == 0


async def builtin_worker(environment: dict[str, str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tocsin", "worker", "--builtin", "command"), env=environment
    )
