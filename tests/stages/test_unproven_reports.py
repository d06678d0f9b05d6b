"""The archiver makes room in the stream of reports."""

from typing import Final

import pytest

from tests.domain.given import KEY, proven, report
from tocsin import subjects
from tocsin.domain.events import Message, Recorded
from tocsin.ports import LogUnavailable
from tocsin.stages.archiver.unproven_reports import KEPT, UnprovenReports
from tocsin.testing import InMemoryEventLog, InMemoryStoredLog

PROVEN: Final = proven(report("completed", claim=7))
UNPROVEN: Final = (
    "report.x",
    "report.a.b.completed.main.1.0000000000000000.1.1",
    "report.a.b.completed.main.1.0000000000000000.1",
    subjects.subject_of(PROVEN).replace("completed", "other"),
    subjects.subject_of(PROVEN).replace("report.nightly", "report.other"),
)


@pytest.fixture
def log() -> InMemoryEventLog:
    return InMemoryEventLog()


async def swept(log: InMemoryEventLog, *, limit: int) -> list[Recorded[Message]]:
    await UnprovenReports(log, InMemoryStoredLog(log), KEY, limit=limit).run_once()
    return await log.read("report.>")


@pytest.mark.parametrize("subject", UNPROVEN)
async def test_report_that_proves_nothing_leaves_a_full_stream(log: InMemoryEventLog, subject: str) -> None:
    log.receive(subject, PROVEN.encode())
    kept = log.receive(subjects.subject_of(PROVEN), PROVEN.encode())
    log.receive(subject, PROVEN.encode())
    assert [recorded.sequence for recorded in await swept(log, limit=1)] == [kept]


@pytest.mark.parametrize("limit", [-1, 1_000_000])
async def test_stream_with_room_keeps_everything(log: InMemoryEventLog, limit: int) -> None:
    log.receive(UNPROVEN[2], PROVEN.encode())
    assert len(await swept(log, limit=limit)) == 1


async def test_newest_reports_of_a_claim_stay(log: InMemoryEventLog) -> None:
    sequences = [log.receive(subjects.subject_of(PROVEN), PROVEN.encode()) for _ in range(KEPT + 3)]
    assert [recorded.sequence for recorded in await swept(log, limit=1)] == sequences[3:]


async def test_newest_reports_stay_of_all_portions(log: InMemoryEventLog) -> None:
    reports = UnprovenReports(log, InMemoryStoredLog(log), KEY, limit=1)
    other = proven(report("failed", claim=8))
    kept = log.receive(subjects.subject_of(other), other.encode())
    sequences = []
    for _ in range(2 * KEPT):
        sequences += [log.receive(subjects.subject_of(PROVEN), PROVEN.encode()) for _ in range(2)]
        await reports.run_once()
    assert [recorded.sequence for recorded in await log.read("report.>")] == [kept, *sequences[-KEPT:]]


class _Interrupted(InMemoryEventLog):
    is_available = False

    async def remove(self, subject: str, sequence: int) -> None:
        if not self.is_available:
            raise LogUnavailable
        await super().remove(subject, sequence)


async def test_portion_removed_in_part_is_examined_again() -> None:
    log = _Interrupted()
    reports = UnprovenReports(log, InMemoryStoredLog(log), KEY, limit=1)
    sequences = [log.receive(subjects.subject_of(PROVEN), PROVEN.encode()) for _ in range(KEPT + 3)]
    with pytest.raises(LogUnavailable):
        await reports.run_once()
    log.is_available = True
    assert await reports.run_once() == 3
    assert [recorded.sequence for recorded in await log.read("report.>")] == sequences[3:]


async def test_only_some_subjects_are_remembered(log: InMemoryEventLog) -> None:
    reports = UnprovenReports(log, InMemoryStoredLog(log), KEY, limit=1, remembered=2)
    others = [proven(report("completed", claim=claim)) for claim in (8, 9)]
    for message in (*[PROVEN] * KEPT, *others, PROVEN):
        log.receive(subjects.subject_of(message), message.encode())
        await reports.run_once()
    assert len(await log.read("report.>")) == KEPT + 3


async def test_removal_continues_where_it_ended(log: InMemoryEventLog) -> None:
    reports = UnprovenReports(log, InMemoryStoredLog(log), KEY, limit=1)
    for number in (1, 2):
        log.receive(UNPROVEN[0], PROVEN.encode())
        log.receive(subjects.subject_of(PROVEN), PROVEN.encode())
        assert await reports.run_once() == 1
        assert len(await log.read("report.>")) == number
    assert await reports.run_once() == 0
