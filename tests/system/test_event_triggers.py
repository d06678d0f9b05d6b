"""Events start executions: messages of another program's stream, and ends of other jobs."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.services.health.test_status import program
from tests.system.processes import environment_of
from tests.system.running import Running, running
from tocsin import Context, Worker, bootstrap, subjects
from tocsin.domain import ledger
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Actor,
    CancelRequest,
    Completed,
    Dispatched,
    EventIgnored,
    Planned,
    PoisonMessage,
    Skipped,
    Trigger,
)
from tocsin.subjects import Bucket

MATCHED = {"default": {"transport": "matched"}}
OTHERS = [stage for stage in bootstrap.STAGE_NAMES if stage != "event_listener"]
INVOICE: dict[str, Any] = {
    "name": "invoice",
    "function": "echo",
    "overlap_policy": "allow",
}


class Shop:
    """A program with a stream of its own."""

    def __init__(self) -> None:
        self.root = f"shop{uuid4().hex[:8]}"
        self.stream = self.root.upper()

    @property
    def opened(self) -> dict[str, Any]:
        return {"streams": {self.stream: [f"{self.root}.>"]}}

    def trigger(self, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - fields as they are written
        return {"nats": f"{self.root}.orders.*", **fields}

    async def create(self, tocsin: Running) -> None:
        config = {"name": self.stream, "subjects": [f"{self.root}.>"], "storage": "memory"}
        await tocsin.installation.connection.manage(f"STREAM.CREATE.{self.stream}", json.dumps(config).encode())

    async def publish(self, tocsin: Running, *bodies: object, **headers: str) -> None:
        for body in bodies:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            await tocsin.installation.connection.store(f"{self.root}.orders.new", data, headers)

    async def heard(self, tocsin: Running, number: int) -> None:
        """Wait until the stream has as many durables of triggers."""
        await tocsin.until(partial(self._has, tocsin, number))

    async def _has(self, tocsin: Running, number: int) -> bool:
        return len(await self.durables(tocsin)) == number

    async def durables(self, tocsin: Running) -> list[str]:
        page = await tocsin.installation.connection.manage(f"CONSUMER.NAMES.{self.stream}")
        return page["consumers"] or []

    async def drained(self, tocsin: Running) -> None:
        """Wait until every message is acknowledged."""
        await tocsin.until(partial(self._is_drained, tocsin))

    async def kept(self, tocsin: Running, number: int) -> None:
        """Wait until as many messages are not acknowledged."""
        await tocsin.until(partial(self._are_kept, tocsin, number))

    async def _are_kept(self, tocsin: Running, number: int) -> bool:
        page = await tocsin.installation.connection.manage(f"CONSUMER.LIST.{self.stream}")
        kept: int = sum(each["num_pending"] + each["num_ack_pending"] for each in page["consumers"])
        return kept == number

    async def _is_drained(self, tocsin: Running) -> bool:
        page = await tocsin.installation.connection.manage(f"CONSUMER.LIST.{self.stream}")
        return all(each["num_pending"] == each["num_ack_pending"] == 0 for each in page["consumers"])


@asynccontextmanager
async def opened(
    nats_url: str,
    folder: Path,
    *stages: str,
    **job: Any,  # noqa: ANN401 - fields as they are written
) -> AsyncIterator[tuple[Running, Shop]]:
    """An installation whose job hears a shop. `stages`: in place of all."""
    shop, worker = Shop(), Worker()

    @worker.task("echo")
    async def echo(context: Context) -> object:
        return dict(context.input)

    async with running(
        nats_url, folder, stages=stages or bootstrap.STAGE_NAMES, worker=worker, queues=MATCHED, triggers=shop.opened
    ) as tocsin:
        await shop.create(tocsin)
        await tocsin.apply({**INVOICE, "triggers": [shop.trigger(**job)]})
        yield tocsin, shop


@asynccontextmanager
async def shopping(nats_url: str, folder: Path, **job: Any) -> AsyncIterator[tuple[Running, Shop]]:  # noqa: ANN401
    async with opened(nats_url, folder, **job) as (tocsin, shop):
        await shop.heard(tocsin, 1)
        yield tocsin, shop


@asynccontextmanager
async def _listener(tocsin: Running) -> AsyncIterator[None]:
    """A process of the event listener, which is killed in the end."""
    command = (sys.executable, "-m", "tocsin", "run", "event-listener")
    listener = await asyncio.create_subprocess_exec(*command, env=environment_of(tocsin.settings))
    try:
        yield
    finally:
        listener.kill()
        await listener.wait()


@asynccontextmanager
async def _stages(tocsin: Running, *names: str) -> AsyncIterator[None]:
    """Further stages of an installation."""
    stages = asyncio.create_task(bootstrap.run_stages(tocsin.installation, list(names)))
    try:
        yield
    finally:
        stages.cancel()
        await asyncio.gather(stages, return_exceptions=True)


async def test_one_execution_for_each_key(nats_url: str, tmp_path: Path) -> None:
    fields = {"when": "body.total > 100", "input": {"order": "body.id", "at": "subject"}, "key": "body.id"}
    async with shopping(nats_url, tmp_path, **fields) as (tocsin, shop):
        await shop.publish(tocsin, {"id": "a", "total": 120}, {"id": "b", "total": 5}, {"id": "a", "total": 999})
        await shop.publish(tocsin, {"id": "c", "total": 101})
        await shop.drained(tocsin)
        ends = await tocsin.ended("invoice", Completed, 2)
        assert [end.result for end in ends] == [{"order": key, "at": f"{shop.root}.orders.new"} for key in ("a", "c")]
        assert {end.trigger for end in ends} == {"event"}
        audited = await program(tocsin.settings, "audit", "-o", "json")
        assert audited.returncode == 0, audited.stdout


async def test_messages_without_a_key_start_one_each(nats_url: str, tmp_path: Path) -> None:
    async with shopping(nats_url, tmp_path) as (tocsin, shop):
        await shop.publish(tocsin, {"same": 1}, {"same": 1})
        await shop.drained(tocsin)
        await tocsin.ended("invoice", Completed, 2)
        assert len(await tocsin.of_executions("invoice", Completed)) == 2


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        {"total": "many"},
        {},
        {"total": 2**70},
        b'{"total": 1, "fill": "%s"}' % (b"x" * 70_000),
    ],
)
async def test_poisoned_message_is_recorded_once(nats_url: str, tmp_path: Path, body: object) -> None:
    async with shopping(nats_url, tmp_path, when="body.total > 100") as (tocsin, shop):
        await shop.publish(tocsin, body, {"total": 101})
        await shop.drained(tocsin)
        await tocsin.ended("invoice", Completed)
        [letter] = await tocsin.stored("dead-letter.invoice.>", PoisonMessage, 1)
        [skipped] = await tocsin.of_executions("invoice", Skipped)
        assert skipped.refusal is not None
        assert skipped.refusal.code in {"evaluation-failed", "unreadable-event"}
        assert letter.message.code == skipped.refusal.code
        audited = await program(tocsin.settings, "audit", "-o", "json")
        assert audited.returncode == 0, audited.stdout


UPSTREAM = {"name": "upstream", "function": "no-worker-has-this"}


@pytest.mark.parametrize("waits_for", ["lock", "dependency"])
async def test_events_wait_below_the_waiting_limit(nats_url: str, tmp_path: Path, waits_for: str) -> None:
    """No worker has the function of the first execution, so it stays open until it is cancelled."""
    async with shopping(nats_url, tmp_path) as (tocsin, shop):
        policy: dict[str, Any] = {"overlap_policy": "enqueue", "depends_on": ()}
        if waits_for == "dependency":
            policy = {"overlap_policy": "allow", "depends_on": [{"job": "upstream", "within": "1h", "on": "finished"}]}
        waited_for = "busy" if waits_for == "lock" else "upstream"
        await tocsin.apply(UPSTREAM, {**UPSTREAM, "name": "busy"})
        await tocsin.trigger(waited_for)
        [held] = await tocsin.ended(waited_for, Dispatched)
        await tocsin.apply({**INVOICE, **policy, "name": "busy", "max_waiting": 6, "triggers": [shop.trigger()]})
        await shop.heard(tocsin, 2)
        await shop.publish(tocsin, *({"number": number} for number in range(20)))
        await tocsin.ended("busy", Planned, 3)
        await shop.kept(tocsin, 17)
        await tocsin.trigger("busy")  # finds the other half of the list free
        await tocsin.ended("busy", Planned, 4)
        await tocsin.log.publish(subjects.cancel(waited_for, held.execution_id), CancelRequest(), message_id="end")
        await tocsin.ended("busy", Completed, 21)
        await shop.drained(tocsin)
        assert await tocsin.of_executions("busy", Skipped) == []


async def test_events_wait_while_nothing_decides(nats_url: str, tmp_path: Path) -> None:
    """The lists show nothing of the requests that no stage has decided on."""
    others = [stage for stage in bootstrap.STAGE_NAMES if stage not in {"planner", "lock_keeper"}]
    async with opened(nats_url, tmp_path, *others) as (tocsin, shop):
        busy = {"name": "busy", "overlap_policy": "enqueue", "max_waiting": 6, "triggers": [shop.trigger()]}
        await tocsin.apply({**INVOICE, **busy})
        await shop.heard(tocsin, 2)
        await shop.publish(tocsin, *({"number": number} for number in range(20)))
        await shop.kept(tocsin, 17)
        assert len(await tocsin.facts("trigger.busy", Trigger)) == 3
        async with _stages(tocsin, "planner", "lock_keeper"):
            await tocsin.ended("busy", Completed, 20)
        assert await tocsin.of_executions("busy", Skipped) == []


async def test_headers_of_the_server_are_not_seen(nats_url: str, tmp_path: Path) -> None:
    fields = {"when": 'headers["X-Kind"] == "paid"', "input": {"headers": "headers"}}
    async with shopping(nats_url, tmp_path, **fields) as (tocsin, shop):
        await shop.publish(tocsin, {}, **{"X-Kind": "paid", "Nats-Msg-Id": "m", "Nats-Expected-Stream": shop.stream})
        [end] = await tocsin.ended("invoice", Completed)
        assert end.result == {"headers": {"X-Kind": "paid"}}


async def test_durable_follows_the_definition(nats_url: str, tmp_path: Path) -> None:
    async with shopping(nats_url, tmp_path, key="body.id") as (tocsin, shop):
        [first] = await shop.durables(tocsin)
        await tocsin.apply({**INVOICE, "triggers": [shop.trigger(key="body.id", when="body.id != 'no'")]})
        await shop.publish(tocsin, {"id": "no"}, {"id": "yes"})
        await tocsin.ended("invoice", Completed)
        assert await shop.durables(tocsin) == [first]  # another condition keeps its place
        await tocsin.change("invoice", lambda state: ledger.pause(state, "invoice"))
        await shop.heard(tocsin, 0)
        await shop.publish(tocsin, {"id": "paused"})
        await tocsin.change("invoice", lambda state: ledger.resume(state, "invoice"))
        await shop.heard(tocsin, 1)
        await shop.publish(tocsin, {"id": "resumed"})
        assert len(await tocsin.ended("invoice", Completed, 2)) == 2
        await tocsin.change("invoice", lambda state: ledger.delete(state, "invoice"))
        await shop.heard(tocsin, 0)


async def test_subject_that_is_not_opened_is_not_heard(nats_url: str, tmp_path: Path) -> None:
    async with shopping(nats_url, tmp_path) as (tocsin, shop):
        other = {**INVOICE, "name": "other"}
        await tocsin.apply(
            {**other, "triggers": [{"nats": "elsewhere.>", "stream": shop.stream}]},
            {**other, "name": "third", "triggers": [{"nats": f"{tocsin.settings.root}.>"}]},
            {**other, "name": "last", "triggers": [{"nats": f"{shop.root}.>"}]},
        )
        await shop.heard(tocsin, 2)


async def ends_heard(tocsin: Running) -> Collection[str]:
    """The durables of triggers over ends of executions."""
    installation = tocsin.installation
    return await installation.projections.entries(Bucket.TRIGGERS, subjects.ends_key(">"))


async def test_end_of_a_job_starts_another(nats_url: str, tmp_path: Path) -> None:
    async with shopping(nats_url, tmp_path) as (tocsin, _):
        follower = {
            **INVOICE,
            "name": "report",
            "triggers": [{"job": "invoice", "input": {"rows": "body.result.rows"}}],
        }
        await tocsin.apply(follower)
        await tocsin.until(lambda: ends_heard(tocsin))
        await tocsin.trigger("invoice", input={"rows": 7})
        [end] = await tocsin.ended("report", Completed)
        assert end.result == {"rows": 7}
        doctor = await program(tocsin.settings, "audit", "-o", "json")
        assert doctor.returncode == 0, doctor.stdout


async def test_ends_of_a_hidden_job_reach_viewers_only(nats_url: str, tmp_path: Path) -> None:
    """The triggers were registered before their job existed, and before it was hidden."""
    ada, eve = Actor(identity="ada", kind="user"), Actor(identity="eve", kind="user")
    async with shopping(nats_url, tmp_path) as (tocsin, _):

        async def apply(name: str, by: Actor, **fields: object) -> None:
            definition = JobDefinition.model_validate({**INVOICE, "name": name, **fields})
            await tocsin.change(name, partial(ledger.define, definition=definition, by=by))

        triggers = [{"job": each, "input": {"rows": "body.result.rows"}} for each in ("secret", "public")]
        await apply("eves", eve, triggers=triggers)
        await apply("adas-and-eves", ada, triggers=triggers, owner="user:eve")
        await apply("adas", ada, triggers=triggers)
        await apply("secret", ada)
        await apply("secret", ada, viewers=["user:ada"])
        await apply("public", ada)

        async def are_heard() -> bool:
            return len(await ends_heard(tocsin)) == 2 * 3

        await tocsin.until(are_heard)
        await tocsin.trigger("secret", input={"rows": 7})
        await tocsin.ended("secret", Completed)
        await tocsin.ended("adas", Completed)
        await tocsin.trigger("public", input={"rows": 1})
        await tocsin.ended("adas", Completed, 2)
        for name in ("eves", "adas-and-eves"):
            [end] = await tocsin.ended(name, Completed)
            assert end.result == {"rows": 1}
        await apply("secret", ada)  # it hides no more
        await tocsin.trigger("secret", input={"rows": 8})
        await tocsin.ended("eves", Completed, 2)


async def test_circle_of_triggers_is_refused_at_apply(nats_url: str, tmp_path: Path) -> None:
    async with running(nats_url, tmp_path, queues=MATCHED) as tocsin:
        file = tmp_path / "jobs.yaml"
        file.write_text(
            "jobs:\n"
            "  - {name: a, function: f, triggers: [{job: b}]}\n"
            "  - {name: b, function: f, triggers: [{job: c, on: finished}]}\n"
            "  - {name: c, function: f, triggers: [{job: a}]}\n"
        )
        refused = await program(tocsin.settings, "jobs", "apply", "-f", str(file))
        assert refused.returncode != 0
        assert "start each other in a circle" in refused.stderr


async def test_debounced_events_start_one_execution(nats_url: str, tmp_path: Path) -> None:
    fields = {"input": {"n": "body.n"}, "key": "body.id", "debounce": "5s"}
    async with shopping(nats_url, tmp_path, **fields) as (tocsin, shop):
        await shop.publish(tocsin, *({"id": "a", "n": n} for n in range(100)), {"id": "b", "n": 7})
        ends = await tocsin.ended("invoice", Completed, 2)
        results: list[Any] = [end.result for end in ends]
        assert sorted(result["n"] for result in results) == [7, 99]
        await shop.drained(tocsin)
        records = await tocsin.stored("event.invoice.*", EventIgnored, 99)
        assert [record.message.event.sequence for record in records] == [*range(1, 100)]
        assert {record.message.reason for record in records} == {"debounced"}
        audited = await program(tocsin.settings, "audit", "-o", "json")
        assert audited.returncode == 0, audited.stdout


async def test_late_listener_starts_no_more_executions(nats_url: str, tmp_path: Path) -> None:
    """Events wait longer than their keys are quiet, because no listener runs; then two share them."""
    fields = {"key": "body.id", "input": {"n": "body.n"}, "debounce": {"quiet": "2s", "at_most": "10m"}}
    async with opened(nats_url, tmp_path, *OTHERS, **fields) as (tocsin, shop):
        async with _listener(tocsin):
            await shop.heard(tocsin, 1)
        for first in range(0, 1_000, 100):  # together, so that no key is quiet in between
            bodies = ({"id": f"{n % 50}", "n": n} for n in range(first, first + 100))
            await asyncio.gather(*(shop.publish(tocsin, body) for body in bodies))
        await asyncio.sleep(2)  # then each wait is over before its events are read
        async with _listener(tocsin), _listener(tocsin):
            await shop.drained(tocsin)
            ends = await tocsin.ended("invoice", Completed, 50)
        results: list[Any] = [end.result for end in ends]
        assert sorted(result["n"] for result in results) == [*range(950, 1_000)]
        assert len(await tocsin.of_executions("invoice", Completed)) == 50


async def test_each_event_is_in_one_batch(nats_url: str, tmp_path: Path) -> None:
    fields = {"input": {"n": "body.n"}, "batch": {"max": 40, "within": "1s"}}
    async with shopping(nats_url, tmp_path, **fields) as (tocsin, shop):
        await shop.publish(tocsin, *({"n": n} for n in range(100)))
        await shop.drained(tocsin)
        await tocsin.until(partial(_has_all, tocsin, 100))
        assert sorted(await _seen(tocsin)) == [*range(100)]
        lists: list[Any] = [end.result for end in await tocsin.of_executions("invoice", Completed)]
        assert max(len(each["events"]) for each in lists) <= 40
        audited = await program(tocsin.settings, "audit", "-o", "json")
        assert audited.returncode == 0, audited.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)  # its rounds of processes, which a busy machine starts slowly
@pytest.mark.parametrize(
    "fields",
    [
        {"key": "body.id", "input": {"n": "body.id"}},
        pytest.param(
            {"key": "body.id", "input": {"n": "body.id"}, "debounce": "1s"},
            marks=pytest.mark.full,
        ),
        pytest.param(
            {"input": {"n": "body.id"}, "batch": {"max": 7, "within": "1s"}},
            marks=pytest.mark.full,
        ),
    ],
)
async def test_killed_listeners_lose_no_event(nats_url: str, tmp_path: Path, fields: dict[str, Any]) -> None:
    async with opened(nats_url, tmp_path, *OTHERS, **fields) as (tocsin, shop):
        tocsin.patience = 120.0
        for number in range(4):
            async with _listener(tocsin):
                await shop.heard(tocsin, 1)
                await shop.publish(tocsin, *({"id": number * 50 + each} for each in range(50)))
                await tocsin.until(partial(_has_some, tocsin, number))
                if number == 3:
                    await shop.drained(tocsin)
                    await tocsin.until(partial(_has_all, tocsin, 200))
        seen = await _seen(tocsin)
        assert sorted(seen) == [*range(200)]
        audited = await program(tocsin.settings, "audit", "-o", "json")
        assert audited.returncode == 0, audited.stdout


async def _has_some(tocsin: Running, number: int) -> bool:
    """Whether an event of a round, or of a later round, was seen."""
    return any(each >= number * 50 for each in await _seen(tocsin))


async def _has_all(tocsin: Running, number: int) -> bool:
    return len(set(await _seen(tocsin))) >= number


async def _seen(tocsin: Running) -> list[int]:
    """The numbers that executions had as input, each as often as it was."""
    results: list[Any] = [end.result for end in await tocsin.of_executions("invoice", Completed)]
    return [event["n"] for result in results for event in result.get("events", [result])]
