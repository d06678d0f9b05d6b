"""The audit of the log of commits itself: its chain, its numbers, its positions, its causes and its inputs."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from tests.commits.processes import NAMES, SEAL, Installation
from tests.commits.scripts import Commits, play, script
from tests.domain.given import NOON
from tocsin import subjects
from tocsin.archive.commit_reader import STORED, as_stored
from tocsin.archive.stream_reader import decoded
from tocsin.bootstrap.commits import takes
from tocsin.domain.commit import RESTORED, CommitEvent, LogHead, Restoration, Seal, Taken
from tocsin.domain.events import Paused, Report
from tocsin.domain.log_events import Trying, Waited, Waits, encode
from tocsin.engine.report_lists import LISTS, unlisted
from tocsin.ports import StoredMessage
from tocsin.ports.commit_log import StoredBody
from tocsin.services.audit.check import Violation
from tocsin.services.audit.commits import CommitRules
from tocsin.subjects import Stream

SECOND = timedelta(seconds=1)
LATER = NOON + timedelta(hours=1)


class Log:
    """Commits that a test writes."""

    def __init__(self) -> None:
        self.head = LogHead("k1")
        self.bodies: list[StoredBody] = []
        self.rules = CommitRules(SEAL, "k1")

    def commit(
        self,
        *events: CommitEvent,
        taken: Mapping[str, Mapping[str, Sequence[tuple[int, int]]]] | None = None,
        at: datetime = NOON,
        stored: datetime = NOON,
        first: int | None = None,
        seal: Seal = SEAL,
    ) -> "Log":
        positions = {
            stage: {source: Taken(tuple(ranges)) for source, ranges in sources.items()}
            for stage, sources in (taken or {}).items()
        }
        draft = seal.write(self.head, writer="w", at=at, taken=positions, events=events, first=first)
        sequence = len(self.bodies) + 1
        self.bodies.append(StoredBody(sequence, stored, draft.body))
        self.head = msgspec.structs.replace(draft.after, sequence=sequence)
        return self

    def foreign(self, body: bytes) -> "Log":
        self.bodies.append(StoredBody(len(self.bodies) + 1, NOON, body))
        self.head = msgspec.structs.replace(self.head, sequence=len(self.bodies))
        return self

    def violations(self, bodies: Sequence[StoredBody] | None = None) -> list[tuple[str, str]]:
        found: list[Violation] = []
        for body in self.bodies if bodies is None else bodies:
            found += self.rules.take(body)[0]
        return [(violation.invariant, violation.reason) for violation in found]


def event(cause: str, *, by: str = "planner") -> CommitEvent:
    return CommitEvent("execution.job.1.completed", by, cause, msgspec.Raw(b"{}"))


def message(sequence: int, time: datetime = NOON, stream: Stream = Stream.REQUESTS) -> StoredMessage:
    return StoredMessage(stream, sequence, time, subjects.trigger("job"), {}, b"{}")


async def played(seed: int, **layout: Any) -> Installation:  # noqa: ANN401
    engine = Commits(**layout)
    await play(script(seed), engine)
    for _ in range(2):  # each process sees what others stored, and has its positions stored
        await engine._runner.rest()
    return engine._installation


@pytest.mark.parametrize("seed", range(12))
async def test_log_of_a_script_is_clean(seed: int) -> None:
    layout = {"groups": [NAMES] if seed % 2 else [[name] for name in NAMES], "cut": seed % 3 == 0}
    installation = await played(seed, **layout)
    log, found = Log(), []
    for stream, inputs in installation.inputs.items():
        for one in inputs:
            log.rules.read(StoredMessage(stream, one.sequence, one.time, one.subject, {}, b"{}"))
    for body in installation.log._stored[0]:
        violations, events = log.rules.take(body)
        assert not violations
        found += [decoded(one) for one in events]
    assert found == await installation.events()
    ends = {stream: len(inputs) for stream, inputs in installation.inputs.items()}
    assert not list(log.rules.finish(installation.clock.now() + timedelta(days=1), ends))
    assert not list(log.rules.remarks())


OTHERS = Seal("other", 0, {"k1": b"1" * 32})


@pytest.mark.parametrize("kind", ["junk", "copy", "other installation", "gap"])
def test_foreign_message_does_not_count(kind: str) -> None:
    log = Log().commit(event("@"))
    after = log.head
    match kind:
        case "junk":
            log.foreign(b"junk")
        case "copy":
            log.foreign(log.bodies[0].body)
        case "other installation":
            log.commit(event("@"), seal=OTHERS)
        case _:
            log.commit(event("@"), first=20)
    log.head = msgspec.structs.replace(after, sequence=2)
    log.commit(event("0-1"))
    assert not log.violations()
    assert log.rules.number == 2
    [remark] = log.rules.remarks()
    assert remark.startswith("1 of the messages of the log are no commits")


def test_removed_beginning_is_violation_and_rest_is_judged() -> None:
    log = Log().commit(event("@")).commit(event("0-1")).commit(event("0-7"))
    [(first, _), (second, reason)] = log.violations(log.bodies[1:])
    assert (first, second) == ("I9", "I9")
    assert "not before it: 0-7" in reason
    assert log.rules.number == 3


def test_removed_commit_in_between_is_foreign_from_there() -> None:
    log = Log().commit(event("@")).commit(event("0-1")).commit(event("0-2"))
    log.violations([log.bodies[0], log.bodies[2]])
    assert log.rules.number == 1
    assert any("does not follow" in remark for remark in log.rules.remarks())


@pytest.mark.parametrize("source", ["REQUESTS", "events"])
def test_place_that_a_stage_took_twice(source: str) -> None:
    log = Log().commit(event("@"), event("@"), event("@"))
    log.commit(taken={"planner": {source: [(1, 2)]}}).commit(taken={"planner": {source: [(2, 3)]}})
    [(invariant, reason)] = log.violations()
    assert invariant == "I4"
    assert "taken" in reason or "twice" in reason


def test_two_stages_take_the_same_place() -> None:
    log = Log().commit(taken={"planner": {"REQUESTS": [(1, 2)]}, "ticker": {"REQUESTS": [(1, 2)]}})
    assert not log.violations()


def test_input_that_is_decided_again() -> None:
    log = Log().commit(event("REQUESTS-1"), taken={"planner": {"REQUESTS": [(1, 1)]}})
    log.commit(event("REQUESTS-1", by="ticker")).commit(event("REQUESTS-1"))
    [(invariant, reason)] = log.violations()
    assert invariant == "I4"
    assert "REQUESTS-1, which planner had taken before" in reason


def test_decisions_on_one_input_in_two_commits() -> None:
    """A commit may end between two calls; the place is taken with the last."""
    log = Log().commit(event("REPORTS-1")).commit(event("REPORTS-1"), taken={"planner": {"REPORTS": [(1, 1)]}})
    assert not log.violations()


@pytest.mark.parametrize("subject", ["s", ""])  # older logs have none
def test_input_that_waited_is_decided_later(subject: str) -> None:
    name = ("planner", "d", "REQUESTS", 1)
    waits = Waits(*name, "s", body=msgspec.Raw(b"{}"), time=NOON, message_id=None, until=NOON, on=())
    waited = encode(Waited(*name, subject), by="planner", cause="REQUESTS-1")
    log = Log().commit(encode(waits, by="planner", cause="REQUESTS-1"), taken={"planner": {"REQUESTS": [(1, 1)]}})
    log.commit(event("REQUESTS-1"), waited).commit(event("REQUESTS-1"))
    assert [invariant for invariant, _ in log.violations()] == ["I4"]


def test_stage_announces_what_it_tries() -> None:
    log = Log().commit(event("REQUESTS-1"), taken={"planner": {"REQUESTS": [(1, 1)]}})
    log.commit(encode(Trying("planner", "REQUESTS-1"), by="planner", cause="REQUESTS-1"))
    assert not log.violations()


@pytest.mark.parametrize(
    ("cause", "invariant"),
    [("0-1", "I9"), ("0-9", "I9"), ("nothing", "I9"), ("", "I9"), (f"@{LATER.isoformat()}", "I2")],
)
def test_cause_that_is_not_before_its_event(cause: str, invariant: str) -> None:
    assert [found for found, _ in Log().commit(event(cause)).violations()] == [invariant]


def test_events_that_do_not_exist_are_taken() -> None:
    log = Log().commit(event("@"), taken={"planner": {"events": [(1, 2)]}})
    assert [invariant for invariant, _ in log.violations()] == ["I3"]


@pytest.mark.parametrize(("seconds", "number"), [(-20, 1), (-5, 0), (3600, 0)])
def test_commit_time_against_the_time_of_the_server(seconds: int, number: int) -> None:
    log = Log().commit(event("@"), stored=NOON + seconds * SECOND)
    assert [invariant for invariant, _ in log.violations()] == ["I2"] * number


def restored(head: LogHead, to: int) -> CommitEvent:
    return CommitEvent(RESTORED, "", "@", msgspec.Raw(msgspec.json.encode(Restoration(head.number, to))))


def test_restored_log_may_leave_numbers_out() -> None:
    log = Log().commit(event("@"))
    log.commit(restored(log.head, 1_000), first=1_001).commit(event("0-1001"))
    assert not log.violations()
    assert log.rules.number == 1_002
    assert list(log.rules.remarks()) == ["the log was restored to event 1; numbers up to 1,000 are not used again"]


@pytest.mark.parametrize(("minutes", "number"), [(9, 0), (11, 1)])
def test_input_that_a_stage_leaves(minutes: int, number: int) -> None:
    log = Log().commit(taken={"planner": {"REQUESTS": [(1, 1), (3, 3)]}})
    for sequence in (1, 2, 3):
        log.rules.read(message(sequence))
    log.violations()
    found = list(log.rules.finish(NOON + timedelta(minutes=minutes), {Stream.REQUESTS: 3}))
    assert [(violation.invariant, violation.entity) for violation in found] == [("I3", "planner on REQUESTS")] * number
    assert all("(2)" in violation.reason for violation in found)


def test_input_is_left_by_stages_that_take_it() -> None:
    log = Log()
    log.rules = CommitRules(SEAL, "k1", takes=takes)
    log.commit(taken={"planner": {"REQUESTS": [(1, 1)]}, "registrar": {"REQUESTS": [(2, 2)]}})
    for sequence, subject in ((1, "trigger.j"), (2, "change.j.1"), (3, "change.j.2"), (4, "trigger.j")):
        log.rules.read(StoredMessage(Stream.REQUESTS, sequence, NOON, subject, {}, b"{}"))
    log.violations()
    found = list(log.rules.finish(LATER, {Stream.REQUESTS: 4}))
    assert [(one.entity, one.reason.split(" are ")[0]) for one in found] == [
        ("planner on REQUESTS", "1 inputs"),
        ("registrar on REQUESTS", "1 inputs"),
    ]
    assert [sequence for sequence, *_ in log.rules._untaken["REQUESTS"]] == [3, 4]


def test_stream_that_lost_its_tail() -> None:
    log = Log().commit(taken={"planner": {"REQUESTS": [(1, 1), (5, 5)]}})
    log.violations()
    assert not list(log.rules.finish(NOON, {Stream.REQUESTS: 5}))
    [found] = log.rules.finish(NOON, {Stream.REQUESTS: 4})
    assert "lost its tail" in found.reason


def test_inputs_that_all_stages_took_are_forgotten() -> None:
    log = Log()
    for sequence in range(1, 5_001):
        log.rules.read(message(sequence))
        log.commit(taken={"planner": {"REQUESTS": [(sequence, sequence)]}})
        log.violations(log.bodies[-1:])
    assert sum(map(len, log.rules._untaken.values())) == 0


def test_events_have_the_decision_time_and_server_time() -> None:
    log = Log().commit(event("@"), stored=NOON + SECOND)
    _, [one] = log.rules.take(log.bodies[0])
    assert one.time == NOON
    assert datetime.fromisoformat(one.headers[STORED]) == NOON + SECOND


def test_definitions_count_from_their_time_in_the_log() -> None:
    paused = Paused(job="job", previous=1, definition=1)
    stored = CommitEvent(subjects.subject_of(paused), "api", "@", msgspec.Raw(paused.encode()))
    log = Log().commit(stored, stored=NOON + SECOND)
    _, [one] = log.rules.take(log.bodies[0])
    assert as_stored(decoded(one), one).time == NOON


def report(id_: str) -> Report:
    return Report(
        job="job", execution_id=id_, step="main", attempt=1, delivery=1, token="t", worker="w", outcome="completed"
    )


def test_reports_in_a_list_are_read_singly() -> None:
    reports = [report("a"), report("b")]
    body = b"[%b]" % b",".join([*(one.encode() for one in reports), b'{"junk":1}'])
    listed = StoredMessage(Stream.REPORTS, 7, NOON, LISTS.replace("*", "w"), {}, body)
    found = [decoded(one) for one in unlisted(listed)]
    assert [one.message for one in found] == reports
    assert [one.subject for one in found] == [subjects.subject_of(one) for one in reports]
    assert {(one.sequence, one.time) for one in found} == {(7, NOON)}
    assert unlisted(message(1)) == (message(1),)


def test_times_of_other_messages_stay() -> None:
    assert as_stored(decoded(message(1)), message(1)).time == NOON
