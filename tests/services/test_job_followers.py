"""Followers of jobs agree with the jobs themselves after any changes, for every caller."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typing_extensions import override

from tests.properties import examples
from tocsin.domain import ledger
from tocsin.domain.access import Principal, Role
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Message, Recorded
from tocsin.services.calculations import Effort
from tocsin.services.jobs import Job, JobFilter, job_filter
from tocsin.services.jobs.job_filter import MAX_TEXT, SearchKeys
from tocsin.services.jobs.job_follower import FEW, JobFollower, JobInstant, NextInstants, SortedInstants, changes
from tocsin.services.overview import AHEAD, LATE, Instant, jobs_now
from tocsin.services.schedule_density import ScheduleGroups
from tocsin.testing import START

ENOUGH: Final = float("inf")
CALLERS: Final = (
    Principal("ada", frozenset({Role.VIEWER})),
    Principal("bob", frozenset({Role.AUTHOR})),
    Principal("eve", frozenset({Role.ADMIN})),
    Principal("mia", frozenset({Role.WORKER})),
)
NAMES: Final = ("a", "b", "c", "d", "e")
FIELDS: Final = st.fixed_dictionaries(
    {
        "schedule": st.sampled_from(("* * * * *", "0 * * * *", "@every 90s", "at 2026-01-01T00:00", None)),
        "viewers": st.sampled_from(((), ("user:ada",), ("user:bob",))),
        "owner": st.sampled_from((None, "ada", "user:bob")),
        "enabled": st.booleans(),
        "tags": st.sampled_from(((), ("Red",), ("red", "straße"))),
        "description": st.sampled_from((None, "Nightly report", "x" * MAX_TEXT + " report")),
        "queue": st.sampled_from(("default", "heavy")),
    }
)
CHANGES: Final = st.lists(
    st.tuples(
        st.sampled_from(("define", "delete", "pause", "resume", "decide", "list")), st.sampled_from(NAMES), FIELDS
    ),
    max_size=25,
)


class Some(Effort):
    """An effort for a number of jobs."""

    def __init__(self, number: int) -> None:
        super().__init__(ENOUGH)
        self._left = number

    @override
    def is_spent(self) -> bool:
        self._left -= 1
        return self._left < 0


@dataclass
class Ledgers:
    """Ledgers that change, and the list of their jobs, in which a job that did not change is the same object."""

    now: datetime = START
    states: dict[str, ledger.Ledger] = field(default_factory=dict)
    listed: dict[str, Job] = field(default_factory=dict)
    sequence: int = 0

    def change(self, verb: str, name: str, fields: dict[str, Any]) -> None:
        self.now += timedelta(seconds=45)
        state = self.states.get(name, ledger.initial)
        facts: Sequence[Message] = ()
        if verb == "define":
            definition = JobDefinition.model_validate({"name": name, "function": "f", **fields})
            facts = ledger.define(state, definition)
        elif state.definition is None:
            return
        elif verb == "decide":
            facts = ledger.decide_instants(state, now=self.now)
        elif verb == "delete":
            facts = ledger.delete(state, name)
        elif verb == "pause":
            facts = ledger.pause(state, name)
        elif verb == "resume":
            facts = ledger.resume(state, name)
        for fact in facts:
            self.sequence += 1
            state = ledger.evolve(state, Recorded(fact, "", self.sequence, self.now))
        self.states[name] = state

    def jobs(self) -> tuple[Job, ...]:
        jobs = dict[str, Job]()
        for name, state in sorted(self.states.items()):
            before = self.listed.get(name)
            job = before if before is not None and before.ledger is state else Job.of(state)
            if job is not None:
                jobs[name] = job
        self.listed = jobs
        return tuple(jobs.values())


def expected_now(jobs: Sequence[Job], caller: Principal, now: datetime) -> tuple[Any, ...]:
    """Return what `jobs_now` must count, from each job alone."""
    seen = [job for job in jobs if caller.may_see(job)]
    instants = list[Instant]()
    for job in seen:
        since = job.ledger.regimes[-1].since
        at = job.next_fire_time(max(since, job.ledger.watermark or since))
        instants += [] if at is None else [Instant(at, job.name)]
    instants.sort(key=lambda instant: (instant.at, instant.job))
    return (
        Counter(job.status for job in seen),
        [instant for instant in instants if instant.at < now - LATE],
        [instant for instant in instants if now < instant.at <= now + AHEAD],
    )


@example(
    [
        *(("define", name, {"schedule": "* * * * *", "viewers": ()}) for name in ("a", "b")),
        ("list", "a", {}),
        ("define", "a", {"schedule": "* * * * *", "viewers": (), "description": "changed"}),
    ],
    3,
)
@given(CHANGES, st.integers(0, 3))
@settings(deadline=None, max_examples=examples(150))
def test_kept_jobs_agree_with_a_fresh_look(steps: list[tuple[str, str, dict[str, Any]]], effort: int) -> None:
    ledgers, instants, keys, groups = Ledgers(), NextInstants(), SearchKeys(), ScheduleGroups()
    for verb, name, fields in [*steps, ("list", "a", {})]:
        ledgers.change(verb, name, fields)
        if verb != "list":
            continue
        jobs = ledgers.jobs()
        for follower in (instants, keys, groups):
            if follower.follow(jobs, Some(effort)):
                assert follower.follow(jobs, Some(0))
        for caller in CALLERS:
            found = jobs_now(jobs, caller.may_see, instants, ledgers.now, Effort(ENOUGH))
            assert found.is_complete
            assert (+found.states, found.late, found.upcoming) == expected_now(jobs, caller, ledgers.now)
            assert (found.late_count, found.upcoming_count) == (len(found.late), len(found.upcoming))
            fresh = ScheduleGroups().seen(jobs, caller.may_see, Effort(ENOUGH))
            assert groups.seen(jobs, caller.may_see, Effort(ENOUGH)) == fresh


FILTERS: Final = st.builds(
    JobFilter,
    search=st.sampled_from((None, "A", "REPORT", "STRASSE", "red\n", "nothing")),
    state=st.sampled_from((None, "active", "paused", "on demand")),
    queue=st.sampled_from((None, "heavy")),
    tag=st.sampled_from((None, "red", "straße")),
    owner=st.sampled_from((None, "user:ada", "bob")),
)


@given(CHANGES, FILTERS, st.sampled_from((0, 2, 100)), st.sampled_from((1, 2, 256)))
@settings(deadline=None, max_examples=examples(150))
def test_kept_candidates_lose_no_job(
    steps: list[tuple[str, str, dict[str, Any]]], wanted: JobFilter, effort: int, block: int
) -> None:
    ledgers, instants, keys = Ledgers(), NextInstants(), SearchKeys()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_filter, "BLOCK_JOBS", block)
        for verb, name, fields in [*steps, ("list", "a", {})]:
            ledgers.change(verb, name, fields)
            if verb == "list":
                jobs = ledgers.jobs()
                candidates = wanted.candidates(jobs, keys, instants, Some(effort))
                found = [job.name for job in candidates if wanted.includes(job, instants.status_of)]
                assert found == [job.name for job in jobs if wanted.includes(job, lambda job: job.status)]


def test_search_looks_at_few_jobs() -> None:
    """A filter that no job meets reaches no job, even after the jobs have changed."""
    ledgers, keys = Ledgers(), SearchKeys()
    names = [f"job-{number:04}" for number in range(1_000)]
    for name in names:
        ledgers.change("define", name, {"tags": ("red",)})
    assert keys.follow(ledgers.jobs(), Effort(ENOUGH))
    for name in names[::50]:
        ledgers.change("pause", name, {})
    with keys.following(ledgers.jobs(), Effort(ENOUGH)):
        assert [len(keys.looked_at((text,), None, None)) for text in ("nothing", "job-0007")] == [0, 1]
        assert keys.looked_at((), "heavy", None) == keys.looked_at((), None, "user:ada") == []


@given(st.lists(st.lists(st.integers(0, 300), max_size=3 * FEW), max_size=6))
@settings(deadline=None)
def test_sorted_instants_stay_sorted(batches: list[list[int]]) -> None:
    instants, kept = SortedInstants(), set[JobInstant]()
    for batch in batches:
        for number in batch:
            instant = JobInstant(START + timedelta(seconds=number // 2), f"job-{number}")
            if instant in kept:
                instants.remove(instant)
                kept.remove(instant)
            else:
                instants.add(instant)
                kept.add(instant)
        after, until = START + timedelta(seconds=20), START + timedelta(seconds=90)
        assert list(instants.before(until)) == sorted(instant for instant in kept if instant.at < until)
        assert list(instants.between(after, until)) == sorted(each for each in kept if after < each.at <= until)


def test_changed_jobs_are_found_by_identity() -> None:
    ledgers = Ledgers()
    for name in NAMES:
        ledgers.change("define", name, {})
    before = ledgers.jobs()
    ledgers.change("pause", "b", {})
    ledgers.change("delete", "c", {})
    ledgers.change("define", "bb", {})
    after = ledgers.jobs()
    removed, added = changes(before, after)
    assert [sorted(job.name for job in some) for some in (removed, added)] == [["b", "c"], ["b", "bb"]]
    assert changes(after, ledgers.jobs()) == ([], [])


def test_follower_begins_again_when_most_jobs_changed() -> None:
    class Names(JobFollower):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []
            self.cleared = 0

        @override
        def _add(self, job: Job) -> None:
            self.names.append(job.name)

        @override
        def _remove(self, job: Job) -> None:
            self.names.remove(job.name)

        @override
        def _clear(self) -> None:
            self.names, self.cleared = [], self.cleared + 1

    ledgers, names = Ledgers(), Names()
    for name in NAMES:
        ledgers.change("define", name, {})
    assert names.follow(ledgers.jobs(), Effort(ENOUGH))
    for name in NAMES[:3]:
        ledgers.change("pause", name, {})
    assert names.follow(ledgers.jobs(), Effort(ENOUGH))
    assert (names.names, names.cleared) == (list(NAMES), 1)


def test_failure_of_a_job_loses_no_job() -> None:
    class NoPause(JobFollower):
        """Keeps the names of jobs, and fails on a paused job."""

        def __init__(self) -> None:
            super().__init__()
            self.names = set[str]()

        @override
        def _add(self, job: Job) -> None:
            if job.ledger.is_paused:
                raise ValueError(job.name)
            self.names.add(job.name)

        @override
        def _remove(self, job: Job) -> None:
            self.names.remove(job.name)

        @override
        def _clear(self) -> None:
            self.names.clear()

    ledgers, follower = Ledgers(), NoPause()
    for name in NAMES:
        ledgers.change("define", name, {})
    ledgers.change("pause", "b", {})
    for _ in range(2):
        with pytest.raises(ValueError, match="b"):
            follower.follow(ledgers.jobs(), Effort(ENOUGH))
    ledgers.change("resume", "b", {})
    assert follower.follow(ledgers.jobs(), Effort(ENOUGH))
    assert follower.names == set(NAMES)
