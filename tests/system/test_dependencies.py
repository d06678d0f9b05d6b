"""Jobs that wait for other jobs: a real nats-server, all stages, the command line."""

import asyncio
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.services.health.test_status import program
from tests.system.running import Running, running
from tocsin import Context, Worker
from tocsin.domain import ledger
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Actor, Completed, DependenciesSettled, Failed, Planned, Skipped, Started, type_of

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "dependencies.md"
MATCHED = {"default": {"transport": "matched"}}


async def test_job_runs_after_its_dependencies(nats_url: str, tmp_path: Path) -> None:
    worker, may_end = Worker(name="team-1"), asyncio.Event()

    @worker.task("load")
    async def load(_: Context) -> None:
        await may_end.wait()

    @worker.task("report")
    async def report(_: Context) -> None: ...

    async with running(nats_url, tmp_path, worker=worker, queues=MATCHED) as tocsin:
        file = tmp_path / "jobs.yaml"
        file.write_text(
            "jobs:\n"
            "  - {name: load, function: load}\n"
            "  - {name: clean, function: report, overlap_policy: allow}\n"
            "  - {name: report, function: report, depends_on: [{job: load, within: 1h}, {job: clean, within: 1h, on: finished}]}\n"
        )
        applied = await program(tocsin.settings, "jobs", "apply", "-f", str(file))
        assert applied.returncode == 0, applied.stderr
        await tocsin.trigger("load")
        await tocsin.trigger("clean")
        await tocsin.ended("clean", Completed)
        await tocsin.trigger("report")
        execution = await _held(tocsin)
        page = (await program(tocsin.settings, "executions", "show", execution)).stdout
        assert "runs of the jobs on which it depends: load, clean" in page
        may_end.set()
        await tocsin.ended("report", Completed)
        [settled] = await tocsin.of_executions("report", DependenciesSettled)
        assert [(run.job, run.ended) for run in settled.runs] == [("load", "completed"), ("clean", "completed")]
        lines = (await program(tocsin.settings, "executions", "show", execution)).stdout
        assert "completed" in lines
        audited = await program(tocsin.settings, "audit", "-o", "json")
        assert audited.returncode == 0, audited.stdout
        assert json.loads(audited.stdout)


async def test_example_of_the_page_runs(nats_url: str, tmp_path: Path) -> None:
    """A daily job on one that runs each hour, with the jobs, the handlers and the triggers of the page."""
    blocks = dict(re.findall(r'^```\w+ title="([\w.]+)"\n(.*?)^```$', PAGE.read_text(), re.MULTILINE | re.DOTALL))
    names: dict[str, Any] = {"__name__": "worker"}
    exec(compile(blocks["worker.py"], "worker.py", "exec"), names)  # noqa: S102 - our own page
    (tmp_path / "jobs.yaml").write_text(blocks["jobs.yaml"])
    async with running(nats_url, tmp_path, worker=names["worker"], queues=MATCHED) as tocsin:
        applied = await program(tocsin.settings, "jobs", "apply", "-f", str(tmp_path / "jobs.yaml"))
        assert applied.returncode == 0, applied.stderr
        await tocsin.trigger("report")
        await tocsin.until(partial(tocsin.of_executions, "report", Planned))
        for job in ("load", "rates"):
            await tocsin.trigger(job)
            await tocsin.ended(job, Completed)
        await tocsin.trigger("report")
        await tocsin.ended("report", Completed)
        early, late = await tocsin.of_executions("report", Planned)
        [completed] = await tocsin.of_executions("report", Completed)
        assert completed.execution_id == late.execution_id != early.execution_id


async def test_circle_is_refused_at_apply(nats_url: str, tmp_path: Path) -> None:
    async with running(nats_url, tmp_path, queues=MATCHED) as tocsin:
        file = tmp_path / "jobs.yaml"
        file.write_text(
            "jobs:\n"
            "  - {name: a, function: f, schedule: '0 1 * * *', depends_on: [b]}\n"
            "  - {name: b, function: f, schedule: '0 1 * * *', depends_on: [c]}\n"
            "  - {name: c, function: f, schedule: '0 1 * * *', depends_on: [a, other]}\n"
        )
        refused = await program(tocsin.settings, "jobs", "apply", "-f", str(file))
        assert refused.returncode != 0
        assert "in a circle" in refused.stderr
        file.write_text("jobs:\n  - {name: a, function: f, schedule: '0 1 * * *', depends_on: [b]}\n")
        warned = await program(tocsin.settings, "jobs", "apply", "-f", str(file))
        assert warned.returncode == 0, warned.stderr
        assert "job `a` depends on job `b`, which is not registered" in warned.stderr


async def _held(tocsin: Running) -> str:
    """The execution that waits, once it is planned and the run before it works."""

    async def look() -> str:
        planned = await tocsin.of_executions("report", Planned)
        started = await tocsin.of_executions("load", Started)
        return planned[0].execution_id if planned and started else ""

    return await tocsin.until(look)


@pytest.mark.parametrize("end", [Completed, Failed, None], ids=["completed", "failed", "running"])
async def test_runs_of_a_hidden_job_are_unknown(
    nats_url: str, tmp_path: Path, end: type[Completed | Failed] | None
) -> None:
    """The dependencies were registered before their job existed, and before it was hidden."""
    ada, eve = Actor(identity="ada", kind="user"), Actor(identity="eve", kind="user")
    worker, may_end = Worker(name="team-1"), asyncio.Event()

    @worker.task("secret")
    async def secret(_: Context) -> None:
        if end is Failed:
            raise ValueError
        if end is None:
            await may_end.wait()

    @worker.task("other")
    async def other(_: Context) -> None: ...

    async with running(nats_url, tmp_path, worker=worker, queues=MATCHED) as tocsin:

        async def apply(name: str, by: Actor, **fields: object) -> None:
            job = {"name": name, "function": "other", "retry": {"max_attempts": 1}, **fields}
            definition = JobDefinition.model_validate(job)
            await tocsin.change(name, partial(ledger.define, definition=definition, by=by))

        async def outcome(name: str) -> DependenciesSettled:
            await tocsin.trigger(name)
            [settled] = await tocsin.ended(name, DependenciesSettled)
            return settled

        after: dict[str, Any] = {"depends_on": [{"job": "secret", "within": "1h"}], "dependency_timeout": "2s"}
        others = {"eves": (eve, {}), "adas-and-eves": (ada, {"owner": "user:eve"}), "changed": (eve, {})}
        for name, (by, fields) in others.items():
            await apply(name, by, **after, **fields)
        await apply("adas", ada, **after)
        await apply("secret", ada, function="secret")
        await apply("secret", ada, function="secret", viewers=["user:ada"])
        await tocsin.trigger("secret")
        await tocsin.ended("secret", Started if end is None else end)
        await tocsin.trigger("changed")
        await tocsin.stored("execution.changed.>", Planned, 1)
        await apply("changed", eve)  # while an execution waits by its older definition
        for name in ("eves", "adas-and-eves"):
            settled = await outcome(name)
            assert settled.outcome == "dependency_missing"
            assert [(run.hidden, run.execution_id, run.ended) for run in settled.runs] == [(True, None, None)]
            [skipped] = await tocsin.ended(name, Skipped)
            assert skipped.reason == "dependency_missing"
            page = (await program(tocsin.settings, "executions", "show", skipped.execution_id)).stdout
            assert "secret is hidden from its job" in page
        [settled] = await tocsin.ended("changed", DependenciesSettled)
        assert settled.outcome == "dependency_missing"
        ended = None if end is None else type_of(end)
        assert [(run.hidden, run.ended) for run in (await outcome("adas")).runs] == [(False, ended)]
        audited = await program(tocsin.settings, "audit", "-o", "json")
        assert audited.returncode == 0, audited.stdout
        doctor = json.loads((await program(tocsin.settings, "doctor", "-o", "json")).stdout)
        [found] = [finding for finding in doctor if finding["code"] == "dependency-hidden"]
        assert (found["level"], found["details"]["jobs"]) == ("warn", ["adas-and-eves", "eves"])
        may_end.set()
        await apply("secret", ada, function="secret")  # it hides no more
        await tocsin.trigger("eves")
        settled = (await tocsin.ended("eves", DependenciesSettled, 2))[1]
        assert [run.hidden for run in settled.runs] == [False]
