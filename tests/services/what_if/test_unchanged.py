"""The replay of unchanged definitions equals the log, for random recorded histories."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from tests.services.what_if.history import History
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Defined, Due, Message, Passed, Recorded
from tocsin.domain.replay import Past
from tocsin.domain.what_if import Outcome, RecordedJob, Runs, Side, Slots, TimeReplay
from tocsin.services.calculations import in_place
from tocsin.services.what_if import PastReader, Question, Replays, WhatIf, Window

SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(3, 12))]
"""More of them: `python -m tests.services.what_if FIRST LAST`."""


async def sides(
    history: History, since: float = 0.0, *, given: bool = False
) -> tuple[dict[str, Side], dict[str, Side]]:
    """Return what the log says of a history from an hour on, and its replay.

    `given`: with the definitions given, as if they were to be tried.
    """
    until = history.now
    window = Window(until - timedelta(hours=history.hours - since), until)
    reader = PastReader(history.world.log, history.world.past, in_place, window.since, window.until)
    jobs = [await reader.job(name) for name in sorted(history.definitions)]
    replays = Replays(window, jobs, await reader.absences(), in_place)
    candidates = {name: JobDefinition.model_validate(rule) for name, rule in history.definitions.items()}
    return replays.recorded(), await replays.play(candidates if given else {}, Slots({}))


def comparable(side: Side) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return every decision and every execution, without what is no part of the answer."""
    decisions = [fact.model_dump(exclude={"definition"}) for fact in side.decisions]
    return decisions, sorted(map(course_of, side.outcomes), key=str)


def course_of(outcome: Outcome) -> dict[str, Any]:
    return {field: value for field, value in asdict(outcome).items() if field != "is_estimated"}


@pytest.mark.parametrize("seed", SEEDS)
async def test_replay_of_recorded_definitions_equals_the_log(seed: int) -> None:
    """Edits, deletions, pauses, absences, DST, triggers, backfills, cancellations and every policy, to the microsecond."""
    history = History(Random(seed))
    await history.record()
    before, after = await sides(history, Random(seed).choice((0.0, 1.0, 2.5)))
    for job, side in before.items():
        assert comparable(after[job]) == comparable(side)


@pytest.mark.parametrize("seed", SEEDS)
async def test_replay_of_given_definition_equals_the_log(seed: int) -> None:
    history = History(Random(1_000 + seed), edits=False)
    await history.record()
    before, after = await sides(history, Random(seed).choice((0.0, 1.0, 2.5)), given=True)
    for job, side in before.items():
        assert comparable(after[job]) == comparable(side)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
async def test_absences_and_paused_queue_equal_the_log(seed: int, given: bool) -> None:  # noqa: FBT001 - a parameter
    chance = Random(2_000 + seed)
    rule = {"schedule": chance.choice(("* * * * *", "*/2 * * * *")), "catch_up": "all", "function": "f"}
    policies = ("skip", "allow", "enqueue", "cancel_previous")
    rules = tuple({**rule, "name": f"job-{n}", "overlap_policy": chance.choice(policies)} for n in range(2))
    begin, paused = chance.uniform(0.1, 1.5), chance.uniform(0.1, 1.5)
    history = History(
        *(chance, 2.5),
        rules=rules,
        durations=(5, 90, 700),
        absences=((begin, begin + chance.uniform(0.05, 0.5)), (begin + 0.6, begin + 0.8)),
        pauses=((paused, paused + chance.uniform(0.1, 0.9)),),
    )
    await history.record()
    before, after = await sides(history, given=given)
    for job, side in before.items():
        assert comparable(after[job]) == comparable(side)


async def test_report_on_the_unchanged_definition_has_no_difference() -> None:
    history = History(Random(3), edits=False)
    await history.record()
    rules = tuple(JobDefinition.model_validate(rule) for rule in history.definitions.values())
    stored = history.world.past
    question = Question(rules, history.now - timedelta(hours=history.hours), history.now)
    report = await WhatIf(history.world.log, stored).ask(question, ())
    assert report.before == report.after
    assert sum(job.differences.count + job.came.count + job.went.count for job in report.jobs) == 0
    assert report.before.fired > 0


def test_instant_after_a_slow_append_keeps_its_decision() -> None:
    """The log stored the decision on :00 as :02 came due, which the ticker decided later, and too late to fire."""
    start = datetime(2026, 3, 1, tzinfo=UTC)
    definition = JobDefinition.model_validate({"name": "often", "schedule": "*/2 * * * * *", "function": "f"})
    facts: list[tuple[Message, float]] = [
        (Defined(job="often", definition=definition), -1.5),
        (Due(job="often", scheduled_time=start, definition=1), 2.5),
        (
            Passed(
                job="often", start=start, until=start + timedelta(seconds=2), reason="missed", count=1, definition=1
            ),
            4.3,
        ),
        (Due(job="often", scheduled_time=start + timedelta(seconds=4), definition=1), 4.5),
    ]
    stored: list[Recorded[Any]] = [
        Recorded(fact, "", number, start + timedelta(seconds=seconds))
        for number, (fact, seconds) in enumerate(facts, 1)
    ]
    since, until = start - timedelta(seconds=1), start + timedelta(seconds=5)
    past = Past("often", stored[:1], stored[1:], (), until)
    recorded = RecordedJob(past, Runs(since))
    replay = TimeReplay(recorded, None, since, until)
    assert replay.advance(lambda: False)
    assert [decided.fact for decided in replay.decided] == [fact for fact, _ in facts[1:]]
