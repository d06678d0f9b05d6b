"""Two versions side by side, as during an upgrade: an earlier commit of this layout, and this checkout."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import pytest

from tests.stored_events import StoredEvents
from tests.system import old_version
from tests.system.processes import TOCSIN, Program, Site, uninitialized_site
from tests.system.test_two_copies import graph
from tests.system.worker_process import noted
from tocsin import bootstrap
from tocsin.domain.events import Completed, DeadLettered, Failed
from tocsin.subjects import name

OLD: Final = "ab77c925334c105f9b291eec31410c338f2b7c16"
"""The first commit with the present columns of the history. A release, and another layout, need a later commit."""
WITH_HISTORY: Final = ("recorder", "archiver")
"""Stages that open the history: the new version migrates its tables, so these never go back."""
STAGES: Final = tuple(stage for stage in bootstrap.STAGE_NAMES if stage not in {"screener", "mq_bridge", *WITH_HISTORY})
HALVES: Final = (STAGES[::2], (*STAGES[1::2], *WITH_HISTORY))
"""Neighbours on the road of an execution are in different halves."""
RETRY: Final = {"max_attempts": 4, "initial_delay": 0.1, "multiplier": 1.5}
JOBS: Final[Sequence[Mapping[str, Any]]] = [
    {"name": "each-second", "schedule": "* * * * * *", "function": "work", "overlap_policy": "allow"},
    {"name": "locked", "schedule": "* * * * * *", "function": "slow", "input": {"seconds": 1.5}},
    {
        "name": "graph",
        "dag": graph(a=(), flaky=("a",), b="a", c=("flaky", "b")),
        "retry": RETRY,
        "overlap_policy": "enqueue",
    },
    {
        "name": "dependent",
        "function": "work",
        "overlap_policy": "allow",
        "depends_on": [{"job": "each-second", "within": "1h"}],
    },
    {"name": "follower", "function": "work", "overlap_policy": "allow", "triggers": [{"job": "graph"}]},
    {"name": "doomed", "function": "broken", "retry": RETRY, "dead_letter": True, "overlap_policy": "allow"},
]
SCHEDULED: Final = ("each-second", "locked")
TRIGGERED: Final = ("graph", "dependent", "doomed")
NAMES: Final = frozenset(definition["name"] for definition in JOBS)
GRACE_S: Final = 45
"""As in the manifests for Kubernetes."""
ENDS: Final = frozenset({"completed", "failed"})
ARCHIVE: Final = {"hot_window": 5, "interval": 1}


class Versions:
    """Programs of both versions on one installation."""

    def __init__(self, tocsin: Site, source: Path) -> None:
        self._tocsin = tocsin
        self._old = ("tests.system.old_version", str(source))
        self._source = source

    def start(self, stages: Sequence[str], *, old: bool) -> Program:
        """Start stages of a version."""
        return self._tocsin.start(*stages, module=self._old if old else TOCSIN)

    def start_worker(self, *, old: bool) -> Program:
        """Start a worker of a version."""
        return self._tocsin.start_worker(module=self._old if old else TOCSIN)

    async def command(self, *arguments: str, old: bool) -> Any:  # noqa: ANN401 - JSON
        """Return the answer of a command of a version."""
        if not old:
            code, answer = await self._tocsin.call(*arguments)
            assert code == 0, answer
            return answer
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tocsin", *arguments, "--output", "json"),
            env=old_version.environment(self._tocsin.environment, self._source),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, failure = await process.communicate()
        assert process.returncode == 0, failure.decode() + said.decode()
        return json.loads(said)

    async def replace(self, before: Program, after: Program) -> None:
        """Stop a program after its successor is at work, as a rolling update does: SIGTERM, then SIGKILL."""
        await self._tocsin.ready()
        before.send(signal.SIGTERM)
        clock = self._tocsin.installation.clock
        patience = clock.monotonic() + GRACE_S

        async def has_ended() -> bool:
            return before.ended is not None or clock.monotonic() > patience

        await self._tocsin.until(has_ended)
        before.kill()
        self._tocsin.programs.remove(before)
        assert after.ended is None


@pytest.mark.slow
async def test_versions_work_side_by_side_during_upgrade(nats_url: str, tmp_path: Path) -> None:
    source = old_version.sources(OLD, tmp_path / "old")
    patience = {"stages": {"ack_wait": 30}, "worker": {"ack_wait": 30, "shutdown_timeout": 30}}
    async with uninitialized_site(nats_url, tmp_path, archive=ARCHIVE, **patience) as tocsin:
        versions = Versions(tocsin, source)
        await versions.command("init", old=True)
        first, second = (versions.start(half, old=True) for half in HALVES)
        worker = versions.start_worker(old=True)
        await tocsin.ready()
        file = tmp_path / "jobs.yaml"
        file.write_text(json.dumps({"jobs": JOBS}), "utf-8")
        await versions.command("jobs", "apply", "-f", str(file), old=True)
        async with load(tocsin):
            await progress(tocsin)
            await versions.command("init", old=False)
            await versions.replace(first, newer := versions.start(HALVES[0], old=False))
            also = versions.start_worker(old=False)
            await progress(tocsin)  # the first half is new
            await versions.replace(newer, first := versions.start(HALVES[0], old=True))
            await versions.replace(second, newer := versions.start(HALVES[1], old=False))
            await progress(tocsin)  # the second half is new
            await versions.replace(first, versions.start(HALVES[0], old=False))
            await versions.replace(worker, also)
            await progress(tocsin)
        await tocsin.quiet()

        everything = await StoredEvents.decodable(tocsin.installation.stored)
        for report in (everything.audited(), *[await versions.command("audit", old=old) for old in (True, False)]):
            violations = report["violations"] if isinstance(report, dict) else report.violations
            assert not violations, violations[:20]
        runs, claims = noted(tocsin.runs), everything.runs()
        assert set(runs.values()) == {1}
        assert (
            runs.keys() == claims.keys()
        )  # a worker that drains hands back what it did not begin, which is claimed again
        assert {recorded.message.job for recorded in everything.facts(Failed)} == {"doomed"}
        assert {recorded.message.job for recorded in everything.facts(Completed)} == NAMES - {"doomed"}
        assert len(everything.facts(DeadLettered)) == len(everything.facts(Failed))
        await tocsin.history_agrees_with(everything)


def test_new_rights_include_those_of_old_version(tmp_path: Path) -> None:
    """The accounts of the new version are loaded before the processes of the old version end."""
    source = old_version.sources(OLD, tmp_path)
    command = [sys.executable, "-m", "tocsin", "permissions"]
    old, new = (
        rights(subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout)
        for variables in (old_version.environment(os.environ, source), {**os.environ})
    )

    assert old
    assert old - new == set()


def rights(accounts: str) -> set[tuple[str, str, str]]:
    """Return each right in the accounts of nats-server, with its user or account, and the list in which it is.

    A denial is left out: it only narrows a wildcard that is allowed, for durables that may be new.
    """
    found, owner, kind = set[tuple[str, str, str]](), "", ""
    for line in map(str.strip, accounts.splitlines()):
        if heading := re.fullmatch(r"(?:\{ user: )?([\w-]+)(?: \{|, password.*)", line):
            owner = heading[1]
        elif heading := re.fullmatch(r"(\w+): [\[{]", line):
            kind = heading[1] if heading[1] != "allow" else kind
        elif kind != "deny" and line.startswith(('"', "{ s")):
            found.add((owner, kind, line))
    return found


@asynccontextmanager
async def load(tocsin: Site) -> AsyncIterator[None]:
    """A steady load of scheduled and triggered executions."""

    async def trigger_all_the_time() -> None:
        for job in cycle(TRIGGERED):
            await tocsin.trigger(job)
            await asyncio.sleep(0.2)

    await tocsin.until(
        tocsin.ends
    )  # an execution of `dependent` before the first run of `each-second` would wait in vain
    triggering = asyncio.create_task(trigger_all_the_time())
    try:
        yield
        assert not triggering.done()
    finally:
        triggering.cancel()
        await asyncio.wait([triggering])
    await tocsin.delete(*SCHEDULED)


async def progress(tocsin: Site) -> None:
    """Wait until one more execution of every job has ended. The archiver removes the ends of earlier executions."""

    async def ends() -> set[tuple[str, str]]:
        return {(name(job), execution_id) for job, execution_id, end in await tocsin.stored_facts() if end in ENDS}

    before = await tocsin.until(ends)

    async def has_been_made() -> bool:
        return {job for job, _ in await ends() - before} == NAMES

    await tocsin.until(has_been_made)
