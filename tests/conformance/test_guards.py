"""Guards beside other messages: those of one atomic batch, and those in flight among replicas.

A real server and the memory log agree here, so that the simulation finds a stage that relies on more.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from tests.conformance.given import NOON, dispatched, started
from tests.conformance.worlds import MemoryWorld, NatsWorld, World, fresh_names
from tests.servers import FAST_CLIENT
from tests.simulation.mutations import MUTATIONS, made
from tocsin.adapters.nats.admin.provision import provision
from tocsin.adapters.nats.client.connection import connect
from tocsin.adapters.nats.client.transport import Outgoing
from tocsin.adapters.nats.server.cluster import EmbeddedCluster
from tocsin.adapters.nats.server.embedded import ANY_PORT
from tocsin.domain.events import Cancelled, Message
from tocsin.ports import Append, EventLog, SequenceConflict
from tocsin.subjects import execution, scope_of, subject_of
from tocsin.testing import InMemoryEventLog

SCOPE = execution("a.job", "e1")
CANCELLED = Cancelled(job="a.job", execution_id="e1", scheduled_time=NOON, trigger="cron")
RACES = 30
OTHER_STRING = next(mutation for mutation in MUTATIONS if mutation.name == "guard a claim by another string")


# --- one atomic batch ------------------------------------------------------------------------------------------------


async def _store_together(world: World, decisions: Sequence[Append]) -> None:
    """Store an atomic batch, without the checks of `EventLog.write`."""
    if isinstance(world, MemoryWorld):
        world.log.propose(decisions).store()
        return
    assert isinstance(world, NatsWorld)
    messages = [(event, decision.expect) for decision in decisions for event in decision.events]
    await world.connection.store_together(
        [
            _guarded(world, event, expect, number, is_last=number == len(messages))
            for number, (event, expect) in enumerate(messages, 1)
        ]
    )


def _guarded(world: NatsWorld, event: Message, expect: int, number: int, *, is_last: bool) -> Outgoing:
    headers = {
        "Nats-Expected-Last-Subject-Sequence": str(expect),
        "Nats-Expected-Last-Subject-Sequence-Subject": world.names.to_wire(scope_of(event)),
        "Nats-Batch-Id": "together",
        "Nats-Batch-Sequence": str(number),
    }
    if is_last:
        headers["Nats-Batch-Commit"] = "1"
    return Outgoing(world.names.to_wire(subject_of(event)), event.encode(), headers)


async def test_batch_stores_two_decisions_of_a_scope(world: World) -> None:
    last = await world.log.append(dispatched(), expect=0)
    await _store_together(world, [Append((started(),), last), Append((CANCELLED,), last)])

    async def are_stored() -> bool:
        return [recorded.message for recorded in await world.log.load(SCOPE)] == [dispatched(), started(), CANCELLED]

    assert await world.until(are_stored)  # a replica may answer that lacks the batch


async def test_write_refuses_two_decisions_of_a_scope(world: World) -> None:
    last = await world.log.append(dispatched(), expect=0)
    with pytest.raises(ValueError, match="guarded by"):
        await world.log.write([Append((started(),), last), Append((CANCELLED,), last)])
    assert await world.log.tail(SCOPE) == last


async def test_failed_guard_refuses_the_whole_batch(world: World) -> None:
    last = await world.log.append(dispatched(), expect=0)
    with pytest.raises(SequenceConflict):
        await _store_together(world, [Append((dispatched("e2"),), 0), Append((started(),), last + 1)])
    assert await world.log.tail(execution("a.job", "e2")) == 0
    assert await world.log.tail(SCOPE) == last


async def test_batch_refuses_two_numbers_of_a_scope(world: World) -> None:
    last = await world.log.append(dispatched(), expect=0)
    with pytest.raises(SequenceConflict):
        await _store_together(world, [Append((started(),), last), Append((CANCELLED,), last + 1)])
    assert await world.log.tail(SCOPE) == last


async def test_refused_batch_in_memory_is_stored_singly() -> None:
    log = InMemoryEventLog(has_batches=True)
    await log.append(dispatched("e5"), expect=0)
    written = await log.write([Append((dispatched(f"e{n}"), started(f"e{n}")), 0) for n in range(8)])
    assert [n for n, one in enumerate(written) if one.error is not None] == [5]
    assert isinstance(written[5].error, SequenceConflict)
    for n, one in enumerate(written):
        assert [recorded.sequence for recorded in await log.load(execution("a.job", f"e{n}"))] == (
            [1] if n == 5 else list(one.sequences)
        )


# --- in flight among replicas ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address a cluster of three."""
    with EmbeddedCluster(tmp_path_factory.mktemp("cluster"), port=ANY_PORT).start() as cluster:
        yield cluster.nodes[0].server.url


@pytest.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.slow)])
async def replicated(request: pytest.FixtureRequest) -> AsyncIterator[EventLog]:
    """A log whose streams have three replicas."""
    if request.param == "memory":
        yield InMemoryEventLog(is_replicated=True)
        return
    async with connect(request.getfixturevalue("cluster_url"), fast_client=FAST_CLIENT) as connection:
        names = fresh_names()
        await provision(connection, names, replicas=3)
        yield NatsWorld(connection, names).log


async def _stored_in_races(log: EventLog) -> set[int]:
    """Append a claim and the end of an execution at once, again and again; return how many of the two were stored."""
    stored: set[int] = set()
    for n in range(RACES):
        last = await log.append(dispatched(f"e{n}"), expect=0)
        end = CANCELLED.changed(execution_id=f"e{n}")
        race = (log.append(started(f"e{n}"), expect=last), log.append(end, expect=last))
        results = await asyncio.gather(*race, return_exceptions=True)
        assert all(isinstance(result, int | SequenceConflict) for result in results)
        stored.add(sum(isinstance(result, int) for result in results))
    return stored


async def test_guard_sees_its_own_string_in_flight(replicated: EventLog) -> None:
    assert await _stored_in_races(replicated) == {1}


async def test_guard_is_blind_to_another_string_in_flight(replicated: EventLog) -> None:
    """The reason why all events of a scope carry the same guard string."""
    with made(OTHER_STRING):
        assert 2 in await _stored_in_races(replicated)


async def test_message_in_flight_refuses_every_number(replicated: EventLog) -> None:
    refused = 0
    for n in range(RACES):
        last = await replicated.append(dispatched(f"e{n}"), expect=0)
        end = CANCELLED.changed(execution_id=f"e{n}")
        race = (replicated.append(started(f"e{n}"), expect=last), replicated.append(end, expect=last + 1))
        first, second = await asyncio.gather(*race, return_exceptions=True)
        assert first == last + 1
        if isinstance(second, SequenceConflict):  # unless the server stored the first before it read the second
            refused += 1
            assert await replicated.append(end, expect=last + 1) == last + 2
        else:
            assert second == last + 2
    assert refused
