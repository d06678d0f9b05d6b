"""The ledger of a job with calendars: each instant ends in one decision, which the audit confirms."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin import subjects
from tocsin.domain import ledger
from tocsin.domain.definition import Blackout, Calendar, DefinitionError, JobDefinition
from tocsin.domain.definition_changes import schedule_effects
from tocsin.domain.events import Due, Message, Passed, Recorded
from tocsin.domain.formats import read_job
from tocsin.domain.ledger import Ledger
from tocsin.services.audit.ledger_time import LedgerTime

START = datetime(2026, 12, 20, tzinfo=UTC)
CHRISTMAS = Calendar(name="christmas", days=("2026-12-24/2026-12-26",))
SCATTERED = tuple(f"{START + timedelta(days=2 * number):%Y-%m-%d}" for number in range(1_001))
WEEKENDS = Calendar(name="weekends", weekdays=("saturday", "sunday"))


def job(schedule: str, **fields: object) -> JobDefinition:
    return JobDefinition.model_validate({"name": "a", "schedule": schedule, "function": "f", **fields})


class Story:
    """A ledger with its events, decided as a ticker does."""

    def __init__(self) -> None:
        self.state = Ledger()
        self.facts: list[Recorded[Message]] = []

    def append(self, facts: list[Message], at: datetime) -> None:
        for fact in facts:
            recorded = Recorded(fact, subjects.subject_of(fact), len(self.facts) + 1, at)
            self.facts.append(recorded)
            self.state = ledger.evolve(self.state, recorded)

    def define(self, definition: JobDefinition, at: datetime) -> None:
        self.append([*ledger.define(self.state, definition)], at)

    def tick(self, now: datetime) -> None:
        while facts := ledger.decide_instants(self.state, now):
            self.append([*facts], now)

    def run(self, until: datetime, most: int = 500) -> None:
        """Decide whenever an instant needs a decision."""
        for _ in range(most):
            at = ledger.next_instant(self.state, self.state.regimes[0].since)
            if at is None or at > until:
                return
            self.tick(at)

    @property
    def decisions(self) -> list[str]:
        return [
            f"{f.scheduled_time:%d %H:%M}" if isinstance(f, Due) else f"{f.until:%d %H:%M} {f.reason} {f.count}"
            for f in (recorded.message for recorded in self.facts)
            if isinstance(f, Due | Passed)
        ]

    def violations(self) -> list[str]:
        check = LedgerTime()
        handlers = check.handlers()
        found = [v for recorded in self.facts for v in handlers[type(recorded.message)](recorded) or ()]
        return [str(violation) for violation in found]


def test_excluded_instants_of_a_day_pass_together() -> None:
    story = Story()
    story.define(job("0 9 * * *", exclude=[CHRISTMAS]), START + timedelta(days=2))
    story.run(START + timedelta(days=8))
    assert story.decisions == [
        "22 09:00", "23 09:00", "24 09:00 excluded 1", "25 09:00 excluded 1", "26 09:00 excluded 1", "27 09:00",
    ]  # fmt: skip
    assert not story.violations()


def test_moved_instant_fires_once_in_its_order() -> None:
    story = Story()
    definition = job("0 9 24-28 12 *", exclude=[CHRISTMAS, WEEKENDS], shift="next_business_day")
    story.define(definition, START)
    story.run(START + timedelta(days=10))
    assert story.decisions == [*(f"{day} 09:00 excluded 1" for day in (24, 25, 26, 27)), "28 09:00"]
    assert not story.violations()


def test_closed_day_is_one_decision() -> None:
    story = Story()
    story.define(job("* * * * * *", exclude=[CHRISTMAS]), datetime(2026, 12, 23, 23, 59, 58, tzinfo=UTC))
    story.run(datetime(2026, 12, 27, 0, 0, 1, tzinfo=UTC))
    assert story.decisions == [
        "23 23:59", *(f"{day} 23:59 excluded 86400" for day in (24, 25, 26)), "27 00:00", "27 00:00",
    ]  # fmt: skip
    assert not story.violations()


def test_excluded_instant_of_a_paused_job_is_excluded() -> None:
    story = Story()
    story.define(job("0 9 * * *", exclude=[CHRISTMAS]), START + timedelta(days=3))
    story.append([*ledger.pause(story.state, "a")], START + timedelta(days=3, hours=1))
    story.tick(START + timedelta(days=5))
    assert story.decisions == ["23 09:00 paused 1", "24 09:00 excluded 1"]
    assert not story.violations()


def test_changed_calendar_fires_nothing_of_the_past() -> None:
    story = Story()
    story.define(job("0 */6 * * *", exclude=[CHRISTMAS]), START + timedelta(days=4, hours=1))
    noon = START + timedelta(days=4, hours=13)
    effects = schedule_effects(story.state, job("0 */6 * * *"), noon, noon + timedelta(days=1))
    assert [f"{at:%d %H}" for at in effects.added] == ["24 18", "25 00", "25 06", "25 12"]
    assert not effects.removed
    assert not effects.fires_at_once
    story.define(job("0 */6 * * *"), noon)
    story.tick(datetime(2026, 12, 24, 18, tzinfo=UTC))
    assert story.decisions == ["24 12:00 excluded 2", "24 18:00"]
    assert not story.violations()


def test_audit_finds_a_firing_on_a_closed_day() -> None:
    story = Story()
    story.define(job("0 9 * * *", exclude=[CHRISTMAS]), START + timedelta(days=3, hours=10))
    at = START + timedelta(days=4, hours=9)
    story.append([Due(job="a", scheduled_time=at, definition=1)], at)
    assert "it fired, and no definition in force named that instant" in story.violations()[0]


def test_audit_finds_an_open_day_passed_as_excluded() -> None:
    story, at = Story(), START + timedelta(days=7, hours=9)
    story.define(job("0 9 * * *", exclude=[CHRISTMAS]), at - timedelta(hours=23))
    start = at - timedelta(hours=23)
    story.append([Passed(job="a", start=start, until=at, reason="excluded", count=1, definition=1)], at)
    assert "they passed as 'excluded', and 0 of 1 were excluded" in story.violations()[0]


def test_job_that_would_never_fire_is_refused() -> None:
    with pytest.raises(DefinitionError) as error:
        ledger.define(Ledger(), job("0 9 * * *", only=[CHRISTMAS]), now=START + timedelta(days=300))
    assert error.value.problems[0].code == "never-fires"
    with pytest.raises(DefinitionError) as error:
        ledger.define(Ledger(), job("at 2026-12-24T09:00", exclude=[CHRISTMAS]), now=START)
    assert error.value.problems[0].code == "never-fires"


@pytest.mark.parametrize(
    ("schedule", "fields", "field", "code"),
    [
        ("@every 1h", {"exclude": [CHRISTMAS], "shift": "next_business_day"}, "shift", "exclusive-fields"),
        ("@daily", {"shift": "next_business_day"}, "shift", "required"),
        (None, {"exclude": [CHRISTMAS]}, "exclude", "exclusive-fields"),
        ("@daily", {"exclude": [CHRISTMAS] * 21}, "exclude", "too-large"),
        ("@daily", {"only": [Calendar(name="a", days=SCATTERED)]}, "only", "too-large"),
        ("@daily", {"blackout": [{"from": "2026-12-20T00:00", "to": "2026-12-21T00:00"}] * 101}, "blackout", "too-large"),
        ("@daily", {"blackout": [{"from": "2026-12-20T00:00", "to": "2026-12-21T00:00", "reason": "x" * 201}]}, "blackout[0].reason", "out-of-range"),
        ("@daily", {"blackout": [{"from": "x", "to": "2026-12-21T00:00"}]}, "blackout[0].from", "invalid-instant"),
        ("@daily", {"blackout": [{"from": "2026-12-21T00:00", "to": "2026-12-20T00:00"}]}, "blackout[0].to", "out-of-range"),
    ],
)  # fmt: skip
def test_contradictory_rules_are_refused(
    schedule: str | None, fields: dict[str, object], field: str, code: str
) -> None:
    with pytest.raises(DefinitionError) as error:
        read_job({"name": "a", "schedule": schedule, "function": "f", **fields})
    assert [(p.field, p.code) for p in error.value.problems] == [(field, code)]


def test_job_without_calendars_stores_nothing_more() -> None:
    assert set(job("@daily").model_dump(exclude_defaults=True)) == {"name", "schedule", "function"}


CALENDARS = st.lists(
    st.sampled_from([CHRISTMAS, WEEKENDS, Calendar(name="b", days=("2026-12-22", "2026-12-29/2026-12-30"))]), max_size=2
)
DEFINITIONS = st.builds(
    lambda schedule, exclude, only, blackout, shift, zone: job(
        schedule,
        exclude=exclude,
        only=only,
        timezone=zone,
        catch_up="all",
        blackout=[Blackout(start="2026-12-21T05:00", end="2026-12-21T19:30")] if blackout else [],
        shift=shift if (exclude or only) and not schedule.startswith("@every") else "skip",
    ),
    st.sampled_from(["0 */5 * * *", "*/40 * * * *", "@every 7h", "0 9 * * 1-3", "0 0 22,27 * *"]),
    CALENDARS,
    CALENDARS,
    st.booleans(),
    st.sampled_from(["skip", "next_business_day"]),
    st.sampled_from(["UTC", "Europe/Prague", "America/New_York"]),
)  # fmt: skip


@given(
    st.lists(
        st.tuples(st.integers(1, 40 * 3_600), st.none() | DEFINITIONS | st.sampled_from(["pause", "resume"])),
        min_size=2,
        max_size=12,
    ),
    DEFINITIONS,
    st.booleans(),
)
def test_every_instant_ends_in_one_decision(
    steps: list[tuple[int, JobDefinition | str | None]],
    first: JobDefinition,
    punctual: bool,  # noqa: FBT001 - drawn by Hypothesis
) -> None:
    story, now = Story(), START
    story.define(first, now)
    for seconds, change in steps:
        now += timedelta(seconds=seconds)
        if punctual:
            story.run(now)
        if isinstance(change, JobDefinition):
            story.define(change, now)
        elif change == "pause":
            story.append([*ledger.pause(story.state, "a")], now)
        elif change == "resume":
            story.append([*ledger.resume(story.state, "a")], now)
        if change is None:
            story.tick(now)
    story.tick(now)
    assert not story.violations()
    spans = [r.message for r in story.facts if isinstance(r.message, Due | Passed)]
    ends = [fact.scheduled_time if isinstance(fact, Due) else fact.until for fact in spans]
    assert ends == sorted(set(ends))
