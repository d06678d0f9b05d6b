"""`tocsin repair`: foreign messages are voided by events, and the audit lists them instead of reporting them."""

import pytest

from tests.cli.conftest import World
from tests.conformance.given import due
from tests.domain.given import JOB, admitted
from tests.guards import guarded
from tocsin import subjects
from tocsin.adapters.memory.event_log import InMemoryEventLog
from tocsin.domain import execution
from tocsin.domain.events import Cancelled, Voided
from tocsin.engine.foreign_reports import ForeignReports, not_voided
from tocsin.services import repair
from tocsin.subjects import Bucket
from tocsin.telemetry.foreign import ForeignMessages

ACK = b'{"stream":"TOCSIN_LEDGER", "seq":7}'


@pytest.fixture
def hurt(world: World) -> World:
    """A log with two foreign messages, and one that this version cannot read."""
    world.log.receive("ledger.a_job.due", ACK)
    world.log.receive("lock.a_job.acquired", b"\xff")
    return world


def test_foreign_messages_are_listed(hurt: World) -> None:
    result = hurt.call("repair", "--dry-run", "-o", "json")
    assert result.code == 0
    assert [(one["stream"], one["sequence"], one["subject"]) for one in result.json["messages"]] == [
        ("LEDGER", 1, "ledger.a_job.due"),
        ("LOG", 1, "lock.a_job.acquired"),
    ]
    assert (result.json["voided"], result.json["dry_run"]) == (0, True)
    assert hurt.do(hurt.log.read("repair.>")) == []
    assert hurt.call("audit").code == 1


def test_voided_messages_are_listed_by_the_audit(hurt: World) -> None:
    result = hurt.call("repair", "--yes", "--reason", "a wrong script")
    assert result.code == 0
    assert result.out.strip().endswith("voided 2")
    events = [one.message for one in hurt.do(hurt.log.read("repair.>"))]
    assert all(isinstance(event, Voided) and event.by and event.reason == "a wrong script" for event in events)
    audit = hurt.call("audit", "-o", "json")
    assert (audit.code, audit.json["violations"]) == (0, [])
    [first, second] = audit.json["voided"]
    assert first.startswith("LEDGER 1 ledger.a_job.due by cli:")
    assert second.endswith(": a wrong script")
    assert "voided: LOG 1 lock.a_job.acquired by cli:" in hurt.call("audit").out.replace("\n", "")
    assert hurt.call("audit", "--job", "a.job").code == 0
    assert "voided" in hurt.call("events", "audit-trail").out


def test_repair_stores_nothing_twice(hurt: World) -> None:
    found = hurt.do(repair.find(hurt.stored))
    assert hurt.do(repair.void(hurt.log, hurt.projections, found)) == 2
    assert hurt.do(repair.void(hurt.log, hurt.projections, found)) == 0
    assert hurt.do(repair.find(hurt.stored)) == []
    assert hurt.call("repair", "--yes").out == "no foreign messages\n"


def test_a_later_foreign_message_is_reported(hurt: World) -> None:
    hurt.call("repair", "--yes")
    sequence = hurt.log.receive("ledger.a_job.due", ACK)
    result = hurt.call("audit", "-o", "json")
    assert [one["entity"] for one in result.json["violations"]] == [f"message {sequence} of LEDGER"]


def test_event_about_another_body_voids_nothing(hurt: World) -> None:
    """A restored backup may hold another message at the same sequence."""
    [first, _] = hurt.do(repair.find(hurt.stored))
    hurt.append(
        Voided(stream="LEDGER", sequence=1, subject=first.subject, stored_at=first.stored_at, found="", digest="0" * 64)
    )
    assert [one.key for one in hurt.do(repair.find(hurt.stored))] == [("LEDGER", 1), ("LOG", 1)]
    assert hurt.call("audit").code == 1
    assert hurt.do(repair.void(hurt.log, hurt.projections, [first])) == 1
    assert [one.key for one in hurt.do(repair.find(hurt.stored))] == [("LOG", 1)]


def test_foreign_message_in_a_repair_is_voided(hurt: World) -> None:
    hurt.log.receive("repair.LEDGER.1.voided", ACK)
    assert hurt.call("repair", "--yes").code == 0
    assert hurt.call("audit").code == 0


def test_unreadable_decision_is_not_voided(world: World) -> None:
    """A stage of a newer version may have stored it, and its scope waits for that version."""
    subject = "execution.a_job.0198.from-the-future"
    world.log.receive(subject, b"{}", headers=guarded(subject))
    assert world.call("repair", "--yes").out == "no foreign messages\n"
    assert world.call("audit").code == 1


def test_unreadable_event_is_voided_on_request(world: World) -> None:
    """The open execution is cancelled first, so that no step runs again."""
    world.append(admitted().changed(execution_id="e1"))
    subject = f"execution.{JOB}.e1.from-the-future"
    sequence = world.log.receive(subject, b'{"v": 9}', headers=guarded(subject, expect=1))
    listed = world.call("repair", "--unreadable", "--dry-run", "-o", "json").json
    assert [(one["stream"], one["sequence"]) for one in listed["messages"]] == [("LOG", sequence)]
    result = world.call("repair", "--unreadable", "--yes", "--reason", "version 9 is gone", "-o", "json")
    assert (result.code, result.json["voided"], result.json["cancelled"]) == (0, 1, ["e1"])
    loaded = world.do(world.log.load(subjects.execution(JOB, "e1")))
    [cancelled] = [one.message for one in loaded if isinstance(one.message, Cancelled)]
    assert cancelled.by is not None
    assert (cancelled.reason, execution.fold(loaded).status) == ("version 9 is gone", "cancelled")
    audit = world.call("audit", "-o", "json").json
    assert audit["voided"] == [f"LOG {sequence} {subject} by {cancelled.by.full_name}: version 9 is gone"]
    assert not any(str(sequence) in one["entity"] for one in audit["violations"])
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
    sequence = world.log.receive(subject, b'{"v": 9}', headers=guarded(subject))
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
    world.log.receive(subject, b'{"v": 9}', headers=guarded(subject, expect=1))
    found = world.do(repair.find(world.stored, unreadable=True))
    assert world.do(repair.void_unreadable(world.log, world.projections, found)) == (1, ["e1"])
    assert world.do(repair.void_unreadable(world.log, world.projections, found)) == (0, [])
    assert world.call("repair", "--unreadable", "--yes", "-o", "json").json["voided"] == 0


def test_nothing_is_voided_without_consent(hurt: World) -> None:
    result = hurt.call("repair", input="n\n")
    assert result.code != 0
    assert hurt.do(hurt.log.read("repair.>")) == []


# --- what processes met ----------------------------------------------------------------------------------------------


def test_met_messages_are_shown_until_they_are_voided(world: World) -> None:
    foreign = ForeignMessages()
    log = InMemoryEventLog(world.clock, foreign=foreign)
    world.log = log
    reports = ForeignReports(world.projections, world.clock, foreign)

    async def meet() -> list[tuple[str, int]]:
        await log.load(subjects.ledger("a.job"))
        await reports.run_once()
        return [(one.stream, one.sequence) for one in await not_voided(log, world.projections)]

    log.receive("ledger.a_job.due", ACK)
    assert world.do(meet()) == [("LEDGER", 1)]
    world.append(due(), expect=1)
    log.receive("ledger.a_job.due", ACK)
    assert world.do(meet()) == [("LEDGER", 1), ("LEDGER", 3)]
    entries = world.do(world.projections.entries(Bucket.FOREIGN))
    world.stored = type(world.stored)(log)  # type: ignore[call-arg] # the log of this world was replaced
    assert world.call("repair", "--yes").code == 0
    assert world.do(world.projections.entries(Bucket.FOREIGN)) == {}
    for key, value in entries.items():  # a process that starts meets them again
        world.do(world.projections.put(Bucket.FOREIGN, key, value))
    assert world.do(meet()) == []
