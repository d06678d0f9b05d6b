"""`tocsin status` and `tocsin doctor` as a user calls them, also where parts are down."""

import json
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.clocks import ShiftedClock
from tests.system.processes import environment_of, run_command
from tests.system.running import running, settings
from tocsin import Context, Worker, bootstrap, subjects
from tocsin.bootstrap.commits import LED
from tocsin.domain.events import Death, Dispatched, OwnershipAssigned, Released, Shard, ShardState, Started
from tocsin.engine.clock_guard import ClockGuard
from tocsin.engine.leader_election import LeaderElection
from tocsin.engine.stage_leases import follower_of, lease_of
from tocsin.services.health import status
from tocsin.services.shards import ShardMaps
from tocsin.settings import Settings
from tocsin.subjects import (
    AGENT_KEEPER_LEASE,
    ARCHIVER_LEASE,
    MATCHER_LEASE,
    TICKER_LEASE,
    Bucket,
    Stream,
)


async def program(of: Settings, *args: str) -> "subprocess.CompletedProcess[str]":
    """One call, while what runs in this process runs on."""
    return await run_command(args, environment_of(of))


async def test_all_of_an_installation_at_work(nats_url: str, tmp_path: Path) -> None:
    async with running(nats_url, tmp_path) as tocsin:
        await tocsin.apply({"name": "paused", "function": "f", "schedule": "* * * * *", "enabled": False})
        await tocsin.apply({"name": "job", "function": "f"})
        await tocsin.trigger("job")

        async def at_work() -> Any:  # noqa: ANN401 - JSON
            seen = json.loads((await program(tocsin.settings, "status", "-o", "json")).stdout)
            [queue] = seen["queues"]
            led = {lease["name"] for lease in seen["leases"]} == {
                *map(lease_of, LED),
                *(ARCHIVER_LEASE, AGENT_KEEPER_LEASE, MATCHER_LEASE, follower_of("registrar"), "event-listener"),
            }
            return (
                seen
                if led and queue["unattended"] and seen["jobs"]["registered"] == 2 and seen["history"]["open"]
                else None
            )

        seen = await tocsin.until(at_work)
        assert seen["troubles"] == {}
        assert seen["server"]["version"]
        assert seen["jobs"] == {"registered": 2, "paused": 0, "disabled": 1}
        assert seen["queues"][0]["oldest"]
        assert seen["queues"][0] | {"oldest": None} == {
            "name": "default",
            "waiting": 1,
            "taken": 0,
            "executors": 0,
            "oldest": None,
            "functions": {"f": 1},
            "held_back": 0,
            "deadly_jobs": [],
            "unattended": True,
        }
        unattended = "1 task in queue `default`, and no worker requests tasks from it"
        assert unattended in seen["problems"]
        assert seen["durables"] == []  # no queue has the MQ bridge

        assert seen["shards"] == {
            "active": 0,
            "draining": 0,
            "disabled": 0,
            "free": 0,
            "without_owner": 0,
            "listed": [],
        }
        assert seen["proposals"] == {"waiting": 0, "oldest": None, "is_complete": True}
        shards = [Shard(shard_id="a"), Shard(shard_id="b"), Shard(shard_id="c", state=ShardState.DRAINING)]
        await ShardMaps(tocsin.installation.log).apply(shards)
        owner = OwnershipAssigned(resource="shard-a", name="gone", agent_id=str(UUID(int=1)), reason="vacant")
        await tocsin.installation.log.append(owner, expect=0)

        result = (await program(tocsin.settings, "status")).stdout
        assert unattended in result
        assert "3 shards: 2 active, 1 draining, 0 disabled, 1 without an owner, 2 free for any worker" in result
        assert "no enabled agent may own 1 shard, whose tasks wait: a; see `tocsin doctor`" in result
        assert "2 jobs, 0 paused, 1 disabled" in result

        doctor = await program(tocsin.settings, "doctor", "-q")
        assert doctor.returncode == 1
        assert "[queue-unattended]" in doctor.stdout
        assert not doctor.stdout.splitlines()[-1].startswith("0 ok")
        assert "→ run a worker for it" in doctor.stdout
        found = json.loads((await program(tocsin.settings, "doctor", "-o", "json")).stdout)
        assert {"server-version", "queue-unattended"} <= {finding["code"] for finding in found}
        assert all(set(finding) == {"code", "level", "what", "means", "do", "details"} for finding in found)


async def test_offsets_of_clocks_are_shown(nats_url: str, tmp_path: Path) -> None:
    async with bootstrap.connect(settings(nats_url, tmp_path)) as installation:
        await bootstrap.initialize(installation)

        def candidate(holder: str, offset: float) -> LeaderElection:
            guard = ClockGuard(installation.log, ShiftedClock(installation.clock, offset))
            return LeaderElection(installation.projections, guard, key=TICKER_LEASE, holder=holder, ttl=60)

        right, wrong = candidate("right", 8.0), candidate("wrong", -120.0)
        await right.run_once()
        await wrong.run_once()
        seen = await status(bootstrap.health_target(installation))
        assert seen.leases is not None
        [lease], [aside] = seen.leases, seen.standing_aside
        assert (lease.name, lease.holder, lease.is_last_resort) == (TICKER_LEASE, "right", False)
        assert (aside.lease, aside.holder) == (TICKER_LEASE, "wrong")
        for shown, offset in ((lease, 8.0), (aside, -120.0)):
            assert shown.clock_offset is not None
            assert shown.clock_error is not None
            assert abs(shown.clock_offset - offset) <= shown.clock_error + 0.001
        result = (await program(installation.settings, "status")).stdout
        assert f"{lease.clock_offset:+.3f} s" in result
        assert "wrong does not stand for `ticker`" in result
        said = json.loads((await program(installation.settings, "status", "-o", "json")).stdout)
        assert said["standing_aside"] == [asdict(aside)]


async def test_matched_queue_shows_the_functions_that_wait(nats_url: str, tmp_path: Path) -> None:
    worker = Worker(queues=["teams"])

    @worker.task("load")
    async def load(_: Context) -> None: ...

    queues = {"teams": {"transport": "matched"}}
    async with running(nats_url, tmp_path, worker=worker, queues=queues) as tocsin:
        await tocsin.apply({"name": "job", "function": "mail/send", "queue": "teams"})
        await tocsin.trigger("job")

        async def waits() -> bool:
            seen = await status(bootstrap.health_target(tocsin.installation))
            [found] = [queue for queue in seen.queues if queue.name == "teams"]
            return bool(found.waiting and found.executors)

        await tocsin.until(waits)
        seen = json.loads((await program(tocsin.settings, "status", "-o", "json")).stdout)
        [queue] = [queue for queue in seen["queues"] if queue["name"] == "teams"]
        assert queue["oldest"]
        assert queue | {"oldest": None} == {
            "name": "teams",
            "waiting": 1,
            "taken": 0,
            "executors": 1,
            "oldest": None,
            "functions": {"mail/send": 1},
            "held_back": 0,
            "deadly_jobs": [],
            "unattended": False,
        }
        result = (await program(tocsin.settings, "status")).stdout
        assert "1 task in queue `teams`" in result
        assert "mail/send 1" in result


async def test_status_reports_the_rest_when_a_part_fails(nats_url: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    database = {"url": f"sqlite:///{tmp_path / 'folder'}"}
    given = settings(nats_url, tmp_path, database=database, queues={"default": {"transport": "mq"}})
    async with bootstrap.connect(given) as installation:
        await bootstrap.initialize(installation)
        names = installation.names
        await installation.connection.manage(f"STREAM.DELETE.{names.bucket_stream(Bucket.LEADER)}")
        seen = await status(bootstrap.health_target(installation))
        assert (seen.leases, seen.history) == (None, None)
        assert seen.streams[names.bucket_stream(Bucket.LEADER)] is None
        assert seen.streams[names.stream(Stream.LOG)] is not None
        assert seen.streams[names.archive_stream] is not None
        assert "unable to open database file" in seen.troubles["history"]
        assert seen.durables
        assert not seen.is_set_up
        result = await program(installation.settings, "status")
        assert result.returncode == 0
        assert f"missing: {names.bucket_stream(Bucket.LEADER)}. Run `tocsin init`." in result.stdout
        assert "unknown: history: " in result.stdout


async def test_a_server_that_does_not_answer(tmp_path: Path) -> None:
    of = settings("nats://127.0.0.1:9", tmp_path)
    for command in ("status", "doctor"):
        result = await program(of, command)
        assert result.returncode == 4
        assert result.stderr.startswith("error: no NATS server answers at nats://127.0.0.1:9: nothing listens there")


async def test_job_that_lost_two_workers_is_named(nats_url: str, tmp_path: Path) -> None:
    async with running(nats_url, tmp_path) as tocsin:
        await tocsin.apply({"name": "job", "function": "f", "recovery": {"max_deaths": 5}})
        await tocsin.trigger("job")
        [first] = await tocsin.stored("execution.job.>", Dispatched, 1)
        deaths = tuple(Death(agent=f"mail.{number}", at=first.time) for number in (1, 2))
        of: dict[str, Any] = {
            "job": "job",
            "execution_id": first.message.execution_id,
            "step": "main",
            "attempt": 1,
            "delivery": 1,
        }
        started = Started(**of, worker="mail")
        released = Released(**of, task=first.sequence, reason="lease_over", deaths=deaths)
        for fact in (started, released):
            await tocsin.log.append(fact, expect=await tocsin.log.tail(subjects.scope_of(fact)))
        sentence = "two or more workers were lost with one task of job; see `tocsin doctor`"

        async def named() -> bool:
            seen = json.loads((await program(tocsin.settings, "status", "-o", "json")).stdout)
            return sentence in seen["problems"] and seen["queues"][0]["deadly_jobs"] == ["job"]

        await tocsin.until(named)
        assert sentence in (await program(tocsin.settings, "status")).stdout
        assert (await program(tocsin.settings, "executions", "cancel", first.message.execution_id)).returncode == 0

        async def forgotten() -> bool:
            return sentence not in (await program(tocsin.settings, "status")).stdout

        await tocsin.until(forgotten)
