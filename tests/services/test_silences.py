"""Silences: bounded in number and time, with who and why."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.given import NOON
from tocsin.domain.events import Actor, Silence
from tocsin.domain.silence import LONGEST_S, MAX_REASON, MAX_SILENCES, MAX_TAG, covering
from tocsin.services.notifications import Silences
from tocsin.services.operations.errors import NotFound, OperationError
from tocsin.testing import InMemoryEventLog, ManualClock

ADA = Actor(identity="ada", kind="user")


@pytest.fixture
def silences() -> Silences:
    clock = ManualClock()
    return Silences(InMemoryEventLog(clock), clock)


async def test_silence_starts_and_ends(silences: Silences) -> None:
    one = await silences.start(job="report", tag=None, seconds=60, reason="one", by=ADA)
    two = await silences.start(job=None, tag="nightly", seconds=120, reason="two")
    assert await silences.newest() == (one, two)
    assert (one.by, one.until - one.since) == (ADA, timedelta(minutes=1))
    assert await silences.end(one.id, by=ADA) == one
    assert await silences.newest() == (two,)
    with pytest.raises(NotFound):
        await silences.end(one.id)


async def test_silences_of_one_instant_are_apart(silences: Silences) -> None:
    grace = Actor(identity="grace", kind="user")
    first = await silences.start(job="report", tag=None, seconds=60, reason="deploy", by=ADA)
    second = await silences.start(job="report", tag=None, seconds=60, reason="deploy", by=grace)
    assert await silences.end(first.id, by=ADA) == first
    assert await silences.newest() == (second,)


async def test_silence_ends_by_itself(silences: Silences) -> None:
    silence = await silences.start(job=None, tag=None, seconds=60, reason="test")
    silences._clock.advance(60)  # type: ignore[attr-defined]
    assert await silences.newest() == ()
    with pytest.raises(NotFound):
        await silences.end(silence.id)


async def test_number_of_silences_is_limited(silences: Silences) -> None:
    for number in range(MAX_SILENCES):
        await silences.start(job=f"job-{number}", tag=None, seconds=60, reason="test")
    with pytest.raises(OperationError, match="silence a tag") as refused:
        await silences.start(job="one-more", tag=None, seconds=60, reason="test")
    assert refused.value.code == "too-many-silences"
    silences._clock.advance(60)  # type: ignore[attr-defined]
    await silences.start(job="one-more", tag=None, seconds=60, reason="test")


@pytest.mark.parametrize(
    ("job", "seconds", "reason"),
    [("report", 0.0, "r"), ("report", LONGEST_S + 1, "r"), ("report", 60.0, " "), ("*", 60.0, "r"), ("a b", 60.0, "r")],
)
async def test_wrong_silence_is_refused(silences: Silences, job: str, seconds: float, reason: str) -> None:
    with pytest.raises(OperationError) as refused:
        await silences.start(job=job, tag=None, seconds=seconds, reason=reason)
    assert refused.value.code == "wrong-silence"


async def test_refused_length_is_in_days(silences: Silences) -> None:
    with pytest.raises(OperationError, match="up to 31 days, not 40 days"):
        await silences.start(job="report", tag=None, seconds=40 * 86_400.0, reason="r")


async def test_long_texts_are_refused(silences: Silences) -> None:
    await silences.start(job=None, tag="t" * MAX_TAG, seconds=60, reason="r" * MAX_REASON)
    for tag, reason in (("t" * (MAX_TAG + 1), "r"), ("", "r"), ("t", "r" * (MAX_REASON + 1))):
        with pytest.raises(OperationError) as refused:
            await silences.start(job=None, tag=tag, seconds=60, reason=reason)
        assert refused.value.code == "wrong-silence"


NAMES = st.sampled_from(["report", "load"]) | st.none()


@given(NAMES, NAMES, st.integers(-2, 2), st.sampled_from(["report", "load"]), st.sets(st.sampled_from(["report", "x"])))
def test_silence_covers_its_jobs_until_its_end(
    job: str | None, tag: str | None, left: int, of: str, tags: set[str]
) -> None:
    until = NOON + timedelta(seconds=left)
    silence = Silence(id="1", job=job, tag=tag, since=NOON, until=until, reason="r")
    covers = left > 0 and job in {None, of} and (tag is None or tag in tags)
    assert (covering([silence], of, tags, NOON) is not None) is covers
