"""Leaders of stages on a real nats-server that are killed, paused, or ended with SIGTERM."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.commits.processes import NAMES
from tests.commits.server import Server, server
from tocsin.domain.log_events import Began, Left, Poison, Trying
from tocsin.engine.change_requests import REGISTRAR

pytestmark = pytest.mark.full  # processes that are killed, on a server

EVERY_SECOND = {"name": "tick", "function": "f", "schedule": "* * * * * *", "overlap_policy": "allow"}


@pytest.fixture
async def given(nats_url: str, tmp_path: Path) -> AsyncIterator[Server]:
    async with server(nats_url, tmp_path) as it:
        yield it


async def test_standby_goes_on_after_kill_and_after_sigterm(given: Server) -> None:
    tocsin = given.tocsin
    programs = [given.start()]
    await tocsin.ready()
    programs.append(given.start())
    await tocsin.ready()
    await given.define(**EVERY_SECOND)
    await _fires(given)
    programs[0].kill()
    await _fires(given)
    programs[0].start()
    await tocsin.ready()
    programs[1].send(signal.SIGTERM)
    await tocsin.until(lambda: _has_ended(given, 3))
    await _fires(given)
    terms = await _of_planner(given)
    assert len({writer for writer, change in terms if isinstance(change, Began)}) == 3
    writers = [writer for writer, change in terms if isinstance(change, Left)]
    assert [writer for writer, change in terms if isinstance(change, Began)][-2] in writers
    changes = [change for _, change in await given.control()]
    assert {stage for change in changes if isinstance(change, Began) for stage in change.stages} == {REGISTRAR, *NAMES}
    events = await given.subjects()
    dues = events.count("ledger.tick.due")
    assert sum(e.startswith("execution.tick.") and ".admitted." in e for e in events) >= dues - 1


async def test_paused_leader_is_overtaken_and_stands_by(given: Server) -> None:
    tocsin = given.tocsin
    paused = given.start()
    await tocsin.ready()
    given.start()
    await tocsin.ready()
    await given.define(**EVERY_SECOND)
    await _fires(given)
    paused.send(signal.SIGSTOP)
    await tocsin.until(lambda: _has_ended(given, 2))
    paused.send(signal.SIGCONT)

    async def has_left() -> bool:
        return any(isinstance(change, Left) for _, change in await given.control())

    await tocsin.until(has_left)
    await _fires(given)
    (first, _), (second, _), *_ = terms = await _of_planner(given)
    assert first != second
    assert first in {writer for writer, change in terms if isinstance(change, Left)}
    instants = await given.instants()
    assert len(set(instants)) == len(instants)


async def test_trigger_that_kills_each_leader_becomes_poison(given: Server) -> None:
    tocsin = given.tocsin
    await given.define(**EVERY_SECOND)  # other commits lie between
    await given.define(name="deadly", function="f")
    await given.define(name="good", function="f", overlap_policy="allow")
    for _ in range(2):
        await given.trigger("good")
        await given.trigger("deadly")
    programs = [given.start(module=("tests.commits.deadly",)) for _ in range(2)]

    async def is_over() -> bool:
        for program in programs:
            if program.ended is not None:
                program.start()
        return sum(isinstance(change, Poison) for _, change in await given.control()) == 2

    await tocsin.until(is_over)
    await given.trigger("good")

    async def is_good_done() -> bool:
        good = {subject.split(".")[2] for subject in await given.subjects() if subject.startswith("execution.good.")}
        return len(good) == 3

    await tocsin.until(is_good_done)
    await _fires(given)
    changes = [change for _, change in await given.control()]
    poison = [change for change in changes if isinstance(change, Poison)]
    assert [(one.stage, one.code) for one in poison] == [("planner", "poison")] * 2
    tries = [change.place for change in changes if isinstance(change, Trying)]
    assert min(tries.count(one.place) for one in poison) >= 3
    terms = [change for change in changes if isinstance(change, Began) and "planner" in change.stages]
    # Two deaths without a name, three at each trigger, and the leader that lives. On a busy machine a leader may be overtaken.
    assert len(terms) >= 2 + 3 + 3 + 1
    events = await given.subjects()
    assert sum(subject.startswith("dead-letter.deadly.") for subject in events) == 2
    instants = await given.instants()
    assert len(set(instants)) == len(instants)


async def _of_planner(given: Server) -> list[tuple[str, Began | Left]]:
    """The terms of the leaders of one stage, as a new leader may get its leases one after the other."""
    return [
        (writer, change)
        for writer, change in await given.control()
        if (isinstance(change, Began) and "planner" in change.stages)
        or (isinstance(change, Left) and "planner" in change.terms)
    ]


async def _has_ended(given: Server, terms: int) -> bool:
    return sum(isinstance(change, Began) for _, change in await _of_planner(given)) == terms


async def _fires(given: Server) -> None:
    """Wait until two more instants fired."""
    before = (await given.subjects()).count("ledger.tick.due")

    async def has_fired() -> bool:
        return (await given.subjects()).count("ledger.tick.due") >= before + 2

    await given.tocsin.until(has_fired)
