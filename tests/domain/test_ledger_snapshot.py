"""Snapshots of ledgers: what is restored and folded further equals what was folded from the beginning."""

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.test_ledger import CHANGES, COMMANDS, Log, at, job
from tests.domain.test_ledger_memory import lean
from tocsin.domain import ledger
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Message, Recorded
from tocsin.domain.ledger import Ledgers, Lookahead, snapshot
from tocsin.domain.ledger.snapshot import FORMAT, PartBuilder, UnreadableSnapshot, restore
from tocsin.domain.schedule import ScheduleError

NAME = "nightly"
CHANGED = st.lists(st.tuples(CHANGES, st.integers(1, 5000)), min_size=1, max_size=25)
DST = {
    "dst": {"gap": "shift", "fold": "both"},
    "starting_deadline": 1.5,
    "catch_up": "all",
    "timezone": "Europe/Berlin",
}


def history(changes: list[tuple[tuple[str, JobDefinition | None], int]]) -> Log:
    """Return a ledger after random changes, one after another."""
    log = Log()
    log.define(job("@every 7m"), at("00:00:00"))
    log.change(changes, at("00:00:00"))
    return log


def follow(ledgers: Ledgers, events: list[Recorded[Message]]) -> None:
    """Fold events as the ticker does."""
    for recorded in events:
        state, sequence = ledgers[NAME]
        if recorded.sequence > sequence:
            ledgers.put(NAME, ledger.evolve(state, lean(recorded)), recorded.sequence)


def copied(ledgers: Ledgers, upto: int) -> Ledgers:
    """Return the ledgers, written and restored."""
    builder, restored = PartBuilder(), Ledgers()
    for name in ledgers:
        builder.add(ledgers, name)
    restore(builder.encode(), restored, upto=upto)
    return restored


def instant_of(ledgers: Ledgers) -> object:
    try:
        return ledgers.next_instant(NAME, Lookahead())
    except (LookupError, ScheduleError) as error:
        return type(error)


@given(CHANGED, st.data())
def test_snapshot_and_tail_equal_the_fold_from_zero(
    changes: list[tuple[tuple[str, JobDefinition | None], int]], data: st.DataObject
) -> None:
    """A snapshot begins at `begin`, and the row of this job is written when the ledger has `end` events."""
    events = history(changes).facts
    end = data.draw(st.integers(0, len(events)), label="end")
    begin = data.draw(st.integers(0, end), label="begin")
    folded, before = Ledgers(), Ledgers()
    follow(folded, events)
    follow(before, events[:end])

    restored = copied(before, end)
    assert restored[NAME] == before[NAME]
    follow(restored, events[begin:])

    assert restored[NAME] == folded[NAME]
    assert restored.sequence(NAME) == len(events)
    assert instant_of(restored) == instant_of(folded)
    later = at("23:59:00") + timedelta(days=2)
    state, _ = restored[NAME]
    assert ledger.decide_instants(state, later) == ledger.decide_instants(folded[NAME][0], later)


@given(CHANGED, st.data())
def test_snapshot_of_newest_events_decides_as_whole(
    changes: list[tuple[tuple[str, JobDefinition | None], int]], data: st.DataObject
) -> None:
    """A ticker folds the last event of each subject, and reads older events that it misses."""
    log = history(changes)
    cut = data.draw(st.integers(1, len(log.facts)), label="cut")
    newest = {recorded.subject: recorded for recorded in log.facts[:cut]}
    before = Ledgers()
    follow(before, sorted(newest.values(), key=lambda recorded: recorded.sequence))

    restored = copied(before, cut)
    follow(restored, log.facts[cut:])

    state, _ = restored[NAME]
    later = at("23:59:00") + timedelta(days=2)
    if ledger.missing_fact(state) is None:
        assert ledger.decide_instants(state, later) == ledger.decide_instants(log.state, later)


def test_timetables_of_a_part_are_shared() -> None:
    ledgers, log = Ledgers(), Log()
    log.define(job("0 7 * * *", **DST), at("00:00:00"))
    for number in range(3):
        state = ledger.evolve(ledger.initial, lean(log.facts[0]))
        ledgers.put(f"job-{number}", state, 1)

    restored = copied(ledgers, 1)

    assert list(restored) == list(ledgers)
    assert len(restored) == 3
    assert [restored[name] for name in restored] == [ledgers[name] for name in ledgers]
    assert len({id(restored[name][0].timetable) for name in restored}) == 1
    assert restored["job-0"][0].timetable is ledgers["job-0"][0].timetable


def test_paused_and_deleted_jobs_are_restored() -> None:
    for command in ("pause", "delete"):
        log, ledgers = Log(), Ledgers()
        log.define(job(), at("00:00:00"))
        log.tick(at("02:00:00"))
        log.store(COMMANDS[command](log.state, NAME), at("02:30:00"))
        follow(ledgers, log.facts)
        restored = copied(ledgers, len(log.facts))
        assert restored[NAME] == ledgers[NAME] == (ledger.without_definitions(log.state), len(log.facts))


def part() -> bytes:
    log, ledgers = Log(), Ledgers()
    log.define(job(), at("00:00:00"))
    follow(ledgers, log.facts)
    builder = PartBuilder()
    builder.add(ledgers, NAME)
    assert builder.newest == 1
    assert builder.size >= len(builder.encode())
    return builder.encode()


def test_truncated_part_is_unreadable() -> None:
    body = part()
    for length in range(len(body)):
        with pytest.raises(UnreadableSnapshot):
            restore(body[:length], Ledgers(), upto=1)


def test_ledger_beyond_the_end_is_unreadable() -> None:
    with pytest.raises(UnreadableSnapshot, match="sequence 1, and the snapshot ends at 0"):
        restore(part(), Ledgers(), upto=0)


@pytest.mark.parametrize(("at_index", "value"), [(0, 7), (1, -1), (4, "now"), (5, 1), (5, -1), (6, 3), (8, True)])
def test_row_with_a_wrong_value_is_unreadable(at_index: int, value: object) -> None:
    decoded = msgspec.msgpack.decode(part())
    decoded[1][0][at_index] = value
    with pytest.raises(UnreadableSnapshot):
        restore(msgspec.msgpack.encode(decoded), Ledgers(), upto=1)


def test_format_names_every_field() -> None:
    """Another shape of rows has another format, so no version misreads the rows of another."""
    assert FORMAT == "1-ddc40e00bf35ee31", (
        "raise `REVISION` if old rows would be misread, and state the new format here"
    )
    assert FORMAT.startswith(f"{snapshot.REVISION}-")
