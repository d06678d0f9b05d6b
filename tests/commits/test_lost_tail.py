"""A log that lost its tail: numbers begin above all that were given, and readers accept this gap and no other."""

from datetime import timedelta

import msgspec
import pytest

from tests.commits.processes import NAMES, SEAL
from tests.commits.test_memory import Work
from tocsin import subjects
from tocsin.adapters.memory.archive import InMemoryArchiveStore, InMemoryProjections
from tocsin.archive.log_archive import ArchivedMessage, LogArchive, Origin, commits_of
from tocsin.domain.commit import RESTORED, LogHead, Restoration
from tocsin.domain.events import Due, Started
from tocsin.engine.commit_writer import Chain
from tocsin.services.repair import LEAST_GAP, MOST_GAP, LogEnd, LogMovedOn, gap


def end_of(work: Work, archive: LogArchive | None = None) -> LogEnd:
    archive = archive or LogArchive(InMemoryArchiveStore(), InMemoryProjections())
    return LogEnd(work.installation.log, 0, SEAL, "k1", archive, work.installation.clock)


async def worked() -> Work:
    work = Work()
    await work.define("nightly", schedule="*/5 * * * * *", overlap_policy="enqueue", max_waiting=5)
    for _ in range(3):
        work.installation.clock.advance(5)
        await work.runner.run()
        await work.finish()
    await work.runner.rest()
    return work


def lose(work: Work, commits: int) -> None:
    """The server lost the newest messages; processes begin again."""
    del work.installation.log._stored[0][-commits:]
    work.runner._processes = [work.installation.process(NAMES)]


async def test_numbers_and_fences_begin_above_what_was_lost() -> None:
    work = await worked()
    before = await work.installation.events()
    lost_upto = before[-1].sequence
    fences = [r.sequence for r in before if r.subject.startswith("lock.")]
    assert fences
    lose(work, 6)
    end = end_of(work)
    head = await end.find()
    assert head.number < lost_upto
    lost = await end.restore(head)
    assert (lost.from_, lost.to) == (head.number, head.number + LEAST_GAP)
    for _ in range(3):
        work.installation.clock.advance(5)
        await work.runner.run()
        await work.finish()
    after = await work.installation.events()
    assert [r.sequence for r in after if r.sequence <= head.number] == [r.sequence for r in before][
        : len(_upto(before, head))
    ]
    new = [r for r in after if r.sequence > head.number]
    assert len(new) > 5
    assert all(r.sequence > lost.to for r in new)
    due = [r.message.scheduled_time for r in after if isinstance(r.message, Due)]
    assert len(due) == len(set(due))
    assert not [scope for scope, state in (await work.states()).items() if not state.is_over]
    fresh = work.installation.process()
    await fresh.read_on()
    await work.process.read_on()
    assert fresh.chain.head == work.process.chain.head
    assert fresh.fold.states == work.fold.states


def _upto(events: list, head: LogHead) -> list:  # type: ignore[type-arg]
    return [r for r in events if r.sequence <= head.number]


async def test_report_on_a_lost_claim_counts_for_nothing() -> None:
    """The proof of the report is valid: the log gave the task, and forgot it."""
    work = Work()
    await work.define("job")
    await work.trigger("job", "one")
    stored = len(work.installation.log._stored[0])
    [report] = await work.claim()
    [claim] = [r.sequence for r in await work.installation.events() if isinstance(r.message, Started)]
    lose(work, len(work.installation.log._stored[0]) - stored)
    end = end_of(work)
    await end.restore(await end.find())
    await work.report(msgspec.structs.replace(report, claim=claim))
    [scope] = await work.states()
    assert not [r for r in await work.installation.events() if isinstance(r.message, Started)]
    assert not (await work.states())[scope].is_over
    await work.finish()
    assert (await work.states())[scope].is_over


@pytest.mark.parametrize("at_least", [0, 7_000_000])
async def test_gap_reaches_above_a_number_that_is_known(at_least: int) -> None:
    work = await worked()
    end = end_of(work)
    head = await end.find()
    lost = await end.restore(head, at_least=at_least)
    assert lost.to == max(head.number, at_least) + LEAST_GAP
    found = await end.find()
    assert found.number == lost.to + 1


async def test_only_its_event_is_in_the_commit() -> None:
    work = await worked()
    end = end_of(work)
    head = await end.find()
    await end.restore(head)
    commit = (await work.installation.commits())[-1]
    assert [event.subject for event in commit.events] == [RESTORED]
    assert msgspec.json.decode(commit.events[0].body, type=Restoration) == Restoration(head.number, commit.first - 1)
    assert not commit.taken
    assert not subjects.guard_of(RESTORED)


async def test_log_that_moved_on_is_not_ended() -> None:
    work = await worked()
    end = end_of(work)
    head = await end.find()
    await work.trigger("nightly", "later")
    with pytest.raises(LogMovedOn):
        await end.restore(head)


async def test_empty_log_begins_above_what_was_lost() -> None:
    work = Work()
    end = end_of(work)
    await end.restore(await end.find(), at_least=500)
    await work.define("job")
    await work.trigger("job", "one")
    assert min(r.sequence for r in await work.installation.events()) > 500 + LEAST_GAP


async def test_end_is_looked_for_after_the_archive() -> None:
    work = await worked()
    archive = LogArchive(InMemoryArchiveStore(), InMemoryProjections())
    chain = Chain(SEAL, LogHead("k1"))
    taken = work.installation.log._stored[0][:5]
    for body in taken:
        chain.take(body)
    messages = [ArchivedMessage(body.sequence, body.time, body.body) for body in taken]
    state, revision = await archive.state()
    origin = Origin(installation="i", root="tocsin", version="1")
    await archive.move(await archive.write(commits_of(0), messages, state, origin, chain.head), expect=revision)
    await work.installation.log.purge(0, upto=5)
    assert await end_of(work, archive).find() == work.process.chain.head


@pytest.mark.parametrize(("seconds", "expected"), [(0, LEAST_GAP), (1_000, 10_000_000), (10_000_000, MOST_GAP)])
def test_gap_grows_with_the_age_of_the_end(seconds: int, expected: int) -> None:
    assert gap(timedelta(seconds=seconds)) == expected
