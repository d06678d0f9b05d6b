"""`tocsin repair`: foreign messages and unreadable events are voided by events."""

import pytest

from tests.cli.conftest import World
from tests.domain.given import JOB, admitted
from tocsin import subjects
from tocsin.domain import execution
from tocsin.domain.events import Cancelled, Message, Recorded, Voided
from tocsin.engine.foreign_reports import ForeignMessages, ForeignReports, not_voided
from tocsin.ports import pages
from tocsin.services import repair
from tocsin.subjects import COMMITS, Bucket


@pytest.fixture
def hurt(world: World) -> World:
    """A log of commits in which processes met two foreign messages."""
    foreign = ForeignMessages()
    for sequence in (7, 9):
        foreign.report("commits.0", sequence, world.clock.now(), "it is no commit", stream=COMMITS)
    world.do(ForeignReports(world.projections, world.clock, foreign).run_once())
    return world


def reported(world: World) -> list[int]:
    return [one.sequence for one in world.do(not_voided(world.log, world.projections))]


def test_foreign_messages_are_listed(hurt: World) -> None:
    result = hurt.call("repair", "--dry-run", "-o", "json")
    assert result.code == 0
    assert [(one["stream"], one["sequence"], one["subject"]) for one in result.json["messages"]] == [
        (COMMITS, 7, "commits.0"),
        (COMMITS, 9, "commits.0"),
    ]
    assert (result.json["voided"], result.json["dry_run"]) == (0, True)
    assert hurt.do(hurt.log.read("repair.>")) == []
    assert reported(hurt) == [7, 9]


def test_voided_messages_are_reported_no_more(hurt: World) -> None:
    entries = hurt.do(hurt.projections.entries(Bucket.FOREIGN))
    result = hurt.call("repair", "--yes", "--reason", "a wrong script")
    assert result.code == 0
    assert result.out.strip().endswith("voided 2")
    events = [one.message for one in hurt.do(hurt.log.read("repair.>"))]
    assert all(isinstance(event, Voided) and event.by and event.reason == "a wrong script" for event in events)
    assert "voided" in hurt.call("events", "audit-trail").out
    assert hurt.do(hurt.projections.entries(Bucket.FOREIGN)) == {}
    for key, value in entries.items():  # a process that starts meets them again
        hurt.do(hurt.projections.put(Bucket.FOREIGN, key, value))
    assert reported(hurt) == []
    assert hurt.call("repair", "--yes").out == "no foreign messages\n"


def test_repair_stores_nothing_twice(hurt: World) -> None:
    found = hurt.do(repair.find(hurt.stored, reported=hurt.do(not_voided(hurt.log, hurt.projections))))
    assert hurt.do(repair.void(hurt.log, hurt.projections, found)) == 2
    assert hurt.do(repair.void(hurt.log, hurt.projections, found)) == 0


def test_unreadable_decision_is_not_voided(world: World) -> None:
    """A stage of a newer version may have stored it, and its scope waits for that version."""
    world.log.receive("execution.a_job.0198.from-the-future", b"{}")
    assert world.call("repair", "--yes").out == "no foreign messages\n"


def test_unreadable_event_is_voided_on_request(world: World) -> None:
    """The open execution is cancelled first, so that no step runs again."""
    world.append(admitted().changed(execution_id="e1"))
    subject = f"execution.{JOB}.e1.from-the-future"
    sequence = world.log.receive(subject, b'{"v": 9}')
    listed = world.call("repair", "--unreadable", "--dry-run", "-o", "json").json
    assert [(one["stream"], one["sequence"]) for one in listed["messages"]] == [("LOG", sequence)]
    result = world.call("repair", "--unreadable", "--yes", "--reason", "version 9 is gone", "-o", "json")
    assert (result.code, result.json["voided"], result.json["cancelled"]) == (0, 1, ["e1"])
    loaded = world.do(_readable(world, subjects.execution(JOB, "e1")))
    [cancelled] = [one.message for one in loaded if isinstance(one.message, Cancelled)]
    assert cancelled.by is not None
    assert (cancelled.reason, execution.fold(loaded).status) == ("version 9 is gone", "cancelled")
    again = world.call("repair", "--unreadable", "--yes")
    assert again.out == "no unreadable events\n"


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        (f"execution.{JOB}.e1.from-the-future", "no readable beginning"),
        (f"lock.{JOB}.from-the-future", "who is let in"),
        ("unique.0123.from-the-future", "who is let in"),
    ],
)
def test_event_that_nothing_replaces_is_kept(world: World, subject: str, reason: str) -> None:
    """Without it, an input would begin its execution again, or another would be let in."""
    sequence = world.log.receive(subject, b'{"v": 9}')
    result = world.call("repair", "--unreadable", "--yes", "-o", "json")
    assert (result.code, result.json["messages"], result.json["voided"]) == (1, [], 0)
    [kept] = result.json["kept"]
    assert (kept["stream"], kept["sequence"]) == ("LOG", sequence)
    assert reason in kept["reason"]
    assert reason in world.call("repair", "--unreadable", "--dry-run").out
    assert world.do(world.log.read("repair.>")) == []


def test_repair_after_a_crash_cancels_nothing_twice(world: World) -> None:
    world.append(admitted().changed(execution_id="e1"))
    subject = f"execution.{JOB}.e1.from-the-future"
    world.log.receive(subject, b'{"v": 9}')
    found = world.do(repair.find(world.stored, unreadable=True))
    assert world.do(repair.void_unreadable(world.log, world.projections, found)) == (1, ["e1"])
    assert world.do(repair.void_unreadable(world.log, world.projections, found)) == (0, [])
    assert world.call("repair", "--unreadable", "--yes", "-o", "json").json["voided"] == 0


def test_nothing_is_voided_without_consent(hurt: World) -> None:
    result = hurt.call("repair", input="n\n")
    assert result.code != 0
    assert hurt.do(hurt.log.read("repair.>")) == []


async def _readable(world: World, scope: str) -> list[Recorded[Message]]:
    return [recorded async for page in pages(world.log, scope) for recorded in page]
