"""The partition in names on the wire: added and removed in one place, as a subject mapping of NATS computes it."""

import json

import pytest

from tests.conformance.worlds import NatsWorld, nats_world
from tests.test_subjects import MESSAGES
from tocsin import subjects
from tocsin.adapters.nats.client.connection import Connection
from tocsin.adapters.nats.client.names import Names
from tocsin.adapters.nats.log.direct_get import DirectGet
from tocsin.domain.events import Message, Trigger

SEVERAL = 7
JOBS = [*(f"job-{number}" for number in range(100)), "a", "a.b.c", "billing.daily-report", "x" * 100, "Ab.9", "0"]


async def test_partition_is_that_of_a_nats_mapping(connection: Connection, names: Names) -> None:
    partitioned = Names(names.root, partitions=SEVERAL)
    stream = names.root.upper()
    destination = f"{names.root}.{{{{partition({SEVERAL},1)}}}}.trigger.{{{{wildcard(1)}}}}"
    config = {
        "name": stream,
        "subjects": [f"{names.root}.in.*"],
        "subject_transform": {"src": f"{names.root}.in.*", "dest": destination},
        "storage": "memory",
        "allow_direct": True,
    }
    await connection.manage(f"STREAM.CREATE.{stream}", json.dumps(config).encode())

    mapped = []
    for job in JOBS:
        sequence = await connection.store(f"{names.root}.in.{subjects.token(job)}", b"", {})
        stored = await DirectGet(connection, stream).by_sequence(sequence)
        assert stored is not None
        mapped.append(stored.subject)

    assert mapped == [partitioned.to_wire(subjects.trigger(job)) for job in JOBS]
    assert len({subject.split(".")[1] for subject in mapped}) == SEVERAL


async def test_public_subjects_carry_no_partition(nats_url: str) -> None:
    async with nats_world(nats_url) as world:
        await world.log.publish(subjects.trigger("a.b"), Trigger(), message_id="own")
        await world.connection.store(f"{world.names.trigger_prefix}.a.b", b"{}", {"Nats-Msg-Id": "public"})

        root = world.names.root
        assert await _wire(world, subjects.Stream.REQUESTS) == [f"{root}.0.trigger.a_b"]
        assert await _wire(world, subjects.Stream.INPUTS) == [f"{world.names.trigger_prefix}.a.b"]
        triggers = [*await world.log.read("trigger.>"), *await world.log.read("public.trigger.>")]
        assert [subjects.job_of(recorded.subject) for recorded in triggers] == ["a.b", "a.b"]


@pytest.mark.parametrize("partitions", [1, SEVERAL])
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_the_partition_is_removed_again(message: Message, partitions: int) -> None:
    names, subject = Names("root", partitions=partitions), subjects.subject_of(message)
    wire = names.to_wire(subject)
    assert wire.split(".", 2)[0] == "root"
    assert wire.split(".", 2)[1].isdecimal()
    assert names.from_wire(wire) == subject
    for relative in subjects.filters_of(type(message)):
        assert subjects.matches(names.to_wire(relative), wire) or not subjects.matches(relative, subject)


def test_all_messages_of_a_job_have_one_partition() -> None:
    names = Names("root", partitions=SEVERAL)
    written = (
        *("ledger.a_b.defined", "execution.a_b.id.>", "lock.a_b.*", "cron.triggered.a_b", "dead-letter.a_b.id.refused"),
        *("trigger.a_b", "trigger.a.b", "cancel.a_b.id", "cancel.a.b.id", "cancel.a.b.*", "report.a_b.id.>"),
        *("timer.a_b.id.retry.s.1", "delay.a_b.id.retry.s.1", "enqueue.a_b.id"),
    )
    assert {names.to_wire(relative).split(".")[1] for relative in written} == {str(subjects.partition_of("a_b", 7))}


@pytest.mark.parametrize(
    ("relative", "expected"),
    [
        ("execution.*.*.admitted", "root.*.execution.*.*.admitted"),
        ("trigger.>", "root.*.trigger.>"),
        ("cancel.>", "root.*.cancel.>"),
        ("cron.>", "root.*.cron.>"),
        ("lock.*.*.queued", "root.*.lock.*.*.queued"),
        ("agent.a.*", "root.0.agent.a.*"),
        ("api.getHealth", "root.api.getHealth"),
        ("mq.scheduled.a.b", "mq.scheduled.a.b"),
    ],
)
def test_filters_over_all_jobs_cover_every_partition(relative: str, expected: str) -> None:
    assert Names("root", partitions=SEVERAL).to_wire(relative) == expected


@pytest.mark.parametrize("foreign", ["root.execution.j.id.admitted", "rooted.0.trigger.j", "orders.created", "root"])
def test_a_foreign_subject_stays_unchanged(foreign: str) -> None:
    assert Names("root").from_wire(foreign) == foreign


def test_requests_to_the_api_have_no_partition() -> None:
    assert Names("root").from_wire("root.api.getHealth") == "api.getHealth"


async def _wire(world: NatsWorld, stream: subjects.Stream) -> list[str]:
    return [stored.subject for stored in await DirectGet(world.connection, world.names.stream(stream)).scan(">")]
