"""The window of a debounced key, by any events in any order."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.given import NOON
from tocsin.domain import debounce
from tocsin.domain.debounce import KeyCount, Window, WindowClosed, count_key
from tocsin.domain.definition import Debounce
from tocsin.domain.events import EventReference, Trigger

RULE = Debounce(quiet=30, at_most=100)
PLACES = st.lists(st.integers(0, 200), min_size=1, max_size=12).map(sorted)


def place(sequence: int, seconds: int) -> EventReference:
    return EventReference(
        stream="ORDERS", sequence=sequence, subject="orders.new", time=NOON + timedelta(seconds=seconds)
    )


def request(event: EventReference) -> Trigger:
    return Trigger(idempotency_key=str(event.sequence))


@given(PLACES, st.data())
def test_last_event_counts_in_any_order(seconds: list[int], data: st.DataObject) -> None:
    events = [place(number, second) for number, second in enumerate(seconds, 1)]
    window: Window | None = None
    for event in data.draw(st.permutations([*events, *events])):
        window, replaced = debounce.hear(window, request(event), event, RULE, "invoice", "id")
        assert replaced != window.last
        assert Window.model_validate_json(window.encode()) == window
    assert window is not None
    assert window.last == events[-1]
    assert window.request == request(events[-1])
    assert window.until <= window.first + timedelta(seconds=100)
    assert window.until <= window.last.time + timedelta(seconds=30)


def test_closed_window_takes_no_new_event() -> None:
    first, second = place(1, 0), place(2, 1)
    window = debounce.hear(None, request(first), first, RULE, "invoice", "id").window
    window = window.model_copy(update={"is_closed": True})
    assert debounce.hear(window, request(first), first, RULE, "invoice", "id").window == window
    with pytest.raises(WindowClosed):
        debounce.hear(window, request(second), second, RULE, "invoice", "id")


def test_job_registered_again_begins_its_own_wait() -> None:
    old, new = place(1, 0), place(2, 60)
    before, after = NOON - timedelta(days=1), NOON + timedelta(seconds=50)
    window = debounce.hear(None, request(old), old, RULE, "invoice", "id", before).window
    assert window.registered_at == before
    for registered_at, first in ((before, old.time), (after, new.time)):
        heard = debounce.hear(window, request(new), new, RULE, "invoice", "id", registered_at)
        assert (heard.window.first, heard.window.request, heard.replaced) == (first, request(new), old)
        assert heard.window.registered_at == registered_at


def test_stream_that_was_made_again_opens_a_window() -> None:
    last, after = place(1_000, 0), place(1, 60)
    window = debounce.hear(None, request(last), last, RULE, "invoice", "id").window
    window = window.model_copy(update={"request": None, "replaced": None})
    heard = debounce.hear(window, request(after), after, RULE, "invoice", "id")
    assert (heard.window.last, heard.window.first, heard.replaced) == (after, after.time, None)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abcdef")), max_size=40), st.integers(1, 4))
def test_count_is_the_number_of_kept_keys(openings: list[tuple[int, str]], most: int) -> None:
    """The hour of a window that is kept no longer does not count."""
    count, now, kept = KeyCount(hours={}), 0, 3
    opened: dict[str, int] = {}
    for hours, key in openings:
        now += hours
        opened = {name: hour for name, hour in opened.items() if hour >= now - kept}
        after = count_key(count, opened.get(key), now, kept=kept, most=most)
        others = len(opened.keys() - {key})
        assert (after is None) == (others >= most)
        if after is not None:
            count, opened[key] = after, now
            assert sum(count.hours.values()) == len(opened)
        assert KeyCount.model_validate_json(count.encode()) == count


def test_drift_of_a_crash_ends_by_itself() -> None:
    count = KeyCount(hours={10: 7})
    assert count_key(count, None, 10, kept=2, most=7) is None
    assert count_key(count, None, 13, kept=2, most=7) == KeyCount(hours={13: 1})
