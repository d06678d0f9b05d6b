"""The ledger: every scheduled instant is decided once, through all changes of definitions and tickers."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties import examples
from tocsin import subjects
from tocsin.domain import ledger
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Defined, DefinitionFact, Deleted, Due, Message, Passed, Paused, Recorded, Resumed
from tocsin.domain.ledger import JobNotFound, Ledger
from tocsin.domain.ledger import instants as ledger_instants
from tocsin.domain.schedule import parse

SECOND = timedelta(seconds=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-20T{text}").replace(tzinfo=UTC)


def job(schedule: str | None = "0 * * * *", **more: object) -> JobDefinition:
    return JobDefinition.model_validate({"name": "nightly", "schedule": schedule, "function": "f", **more})


COMMANDS: dict[str, Callable[[Ledger, str], Sequence[Message]]] = {
    "pause": ledger.pause,
    "resume": ledger.resume,
    "delete": ledger.delete,
}


class Log:
    """A ledger's facts, each stored at a time, and what a ticker adds."""

    def __init__(self) -> None:
        self.facts: list[Recorded[Message]] = []
        self.since: datetime | None = None

    def store(self, facts: Iterable[Message], when: datetime) -> None:
        for fact in facts:
            if self.since is not None and isinstance(fact, DefinitionFact) and self.state.may_change_at(self.since):
                fact = fact.changed(since=self.since)  # noqa: PLW2901 - as the registrar does
            self.facts.append(Recorded(fact, subjects.subject_of(fact), len(self.facts) + 1, when))

    @property
    def state(self) -> Ledger:
        return ledger.fold(self.facts)

    def define(self, definition: JobDefinition, when: datetime) -> None:
        self.store(ledger.define(self.state, definition), when)

    def tick(self, now: datetime) -> list[Due | Passed]:
        decisions: list[Due | Passed] = []
        while facts := ledger.decide_instants(self.state, now):
            self.store(facts, now)
            decisions += facts
        return decisions

    def change(self, changes: Iterable[tuple[tuple[str, JobDefinition | None], int]], now: datetime) -> datetime:
        """Make changes one after another, each some seconds after its predecessor; return the time of the last.

        Each was requested a while before it is stored.
        """
        for (change, definition), seconds in changes:
            self.since = now + seconds * SECOND / 2
            now += seconds * SECOND
            if change == "define" and definition is not None:
                self.define(definition, now)
            elif change == "tick":
                self.tick(now)
            elif self.state.definition is not None:
                self.store(COMMANDS[change](self.state, "nightly"), now)
        return now


@pytest.fixture
def log() -> Log:
    log = Log()
    log.define(job(), at("09:30:00"))
    return log


def due(facts: Iterable[Due | Passed]) -> list[tuple[datetime, bool]]:
    return [(fact.scheduled_time, fact.catch_up) for fact in facts if isinstance(fact, Due)]


def passed(facts: Iterable[Due | Passed]) -> list[tuple[str, int, datetime]]:
    return [(fact.reason, fact.count, fact.until) for fact in facts if isinstance(fact, Passed)]


def test_an_instant_is_due_once(log: Log) -> None:
    assert log.tick(at("09:59:59")) == []
    assert due(log.tick(at("10:00:00"))) == [(at("10:00:00"), False)]
    assert log.tick(at("10:00:01")) == []


def test_nothing_before_the_registration_fires(log: Log) -> None:
    assert due(log.tick(at("10:00:01"))) == [(at("10:00:00"), False)]


def test_a_clock_that_steps_back_opens_nothing_again(log: Log) -> None:
    log.tick(at("11:00:00"))
    assert log.tick(at("09:40:00")) == []
    assert log.tick(at("11:00:00")) == []


def test_cron_25_absence_is_followed_by_one_catch_up(log: Log) -> None:
    facts = log.tick(at("13:30:00"))
    assert passed(facts) == [("missed", 3, at("12:00:00"))]
    assert due(facts) == [(at("13:00:00"), True)]


def test_current_due_occurrence_needs_no_catch_up(log: Log) -> None:
    facts = log.tick(at("13:00:01"))
    assert passed(facts) == [("missed", 3, at("12:00:00"))]
    assert due(facts) == [(at("13:00:00"), False)]


@pytest.mark.parametrize(
    ("policy", "fired", "missed"),
    [("once", ["12:00:00"], 2), ("skip", [], 3), ("all", ["10:00:00", "11:00:00", "12:00:00"], 0)],
)
def test_catch_up_policy_decides_on_missed_occurrences(policy: str, fired: list[str], missed: int) -> None:
    log = Log()
    log.define(job(catch_up=policy), at("09:30:00"))
    facts = log.tick(at("12:30:00"))
    assert [when for when, _ in due(facts)] == [at(text) for text in fired]
    assert sum(count for _, count, _ in passed(facts)) == missed


def test_an_edit_fires_nothing_of_the_past(log: Log) -> None:
    log.tick(at("10:00:00"))
    log.define(job("*/10 * * * *"), at("10:35:00"))
    assert log.tick(at("10:35:01")) == []
    assert due(log.tick(at("10:40:00"))) == [(at("10:40:00"), False)]


def test_occurrence_before_an_edit_fires_by_old_definition(log: Log) -> None:
    log.define(job("30 * * * *"), at("10:00:00.5"))
    [fact] = log.tick(at("10:00:01"))
    assert isinstance(fact, Due)
    assert (fact.scheduled_time, fact.definition) == (at("10:00:00"), 1)


def test_missed_occurrence_of_a_replaced_definition_is_superseded(log: Log) -> None:
    log.define(job("30 * * * *"), at("11:45:00"))
    facts = log.tick(at("12:10:00"))
    assert passed(facts) == [("superseded", 2, at("11:00:00"))]
    assert due(facts) == []


def test_deploy_without_schedule_change_keeps_catch_up(log: Log) -> None:
    """The tickers are down at ten, and the job is applied again with another deadline before they return."""
    log.define(job(timeout=60), at("10:00:30"))
    facts = log.tick(at("10:05:00"))
    assert due(facts) == [(at("10:00:00"), True)]


def test_missed_occurrence_of_a_paused_job_stays_missed(log: Log) -> None:
    log.store(ledger.pause(log.state, "nightly"), at("10:00:30"))
    assert passed(log.tick(at("10:05:00"))) == [("superseded", 1, at("10:00:00"))]


def test_all_missed_instants_are_bounded_by_number() -> None:
    log = Log()
    log.define(job("* * * * *", catch_up="all", catch_up_limit=5), at("09:30:00"))
    facts = log.tick(at("10:30:30"))
    assert passed(facts) == [("missed", 55, at("10:25:00"))]
    assert due(facts) == [(at(f"10:{minute}:00"), True) for minute in range(26, 31)]


def test_catch_up_limit_holds_across_decisions() -> None:
    log = Log()
    log.define(job("* * * * * *", catch_up="all", catch_up_limit=50), at("09:30:00"))
    facts = log.tick(at("10:30:00"))
    late = [when for when, is_late in due(facts) if is_late]
    assert (len(late), late[0]) == (50, at("10:29:08"))
    assert sum(count for _, count, _ in passed(facts)) + len(due(facts)) == 3600


def test_all_missed_instants_are_bounded_by_age() -> None:
    log = Log()
    log.define(job("* * * * *", catch_up="all", catch_up_max_age=600), at("09:30:00"))
    facts = log.tick(at("10:30:30"))
    assert [when for when, _ in due(facts)] == [at(f"10:{minute}:00") for minute in range(21, 31)]


@pytest.mark.parametrize(("seconds", "fires"), [(1799, False), (1801, True)])
def test_starting_deadline_limits_how_late_occurrences_fire(seconds: int, *, fires: bool) -> None:
    log = Log()
    log.define(job(starting_deadline=seconds), at("09:30:00"))
    facts = log.tick(at("10:30:00"))
    assert bool(due(facts)) is fires
    assert bool(passed(facts)) is not fires


def test_resume_releases_no_backlog(log: Log) -> None:
    log.store(ledger.pause(log.state, "nightly"), at("09:45:00"))
    assert passed(log.tick(at("10:00:00"))) == [("paused", 1, at("10:00:00"))]
    log.store(ledger.resume(log.state, "nightly"), at("12:30:00"))
    facts = log.tick(at("12:30:01"))
    assert (passed(facts), due(facts)) == ([("paused", 2, at("12:00:00"))], [])
    assert due(log.tick(at("13:00:00"))) == [(at("13:00:00"), False)]


def test_paused_occurrences_are_named_for_announcement(log: Log) -> None:
    log.store(ledger.pause(log.state, "nightly"), at("09:45:00"))
    [fact] = log.tick(at("11:30:00"))
    assert isinstance(fact, Passed)
    assert fact.scheduled_times == (at("10:00:00"), at("11:00:00"))


@pytest.mark.parametrize(
    ("requested", "reason"), [("09:59:59", "paused"), ("10:00:00", "superseded"), ("10:00:01", "superseded")]
)
def test_pause_holds_from_its_request(log: Log, requested: str, reason: str) -> None:
    log.since = at(requested)
    log.store(ledger.pause(log.state, "nightly"), at("10:30:00"))
    assert passed(log.tick(at("10:30:01"))) == [(reason, 1, at("10:00:00"))]


def test_pause_changes_no_decided_time(log: Log) -> None:
    log.tick(at("10:00:00"))
    assert not log.state.may_change_at(at("09:59:00"))
    assert log.state.may_change_at(at("10:00:00"))


def test_edit_of_a_paused_job_keeps_it_paused(log: Log) -> None:
    log.store(ledger.pause(log.state, "nightly"), at("09:45:00"))
    log.define(job("30 * * * *"), at("09:50:00"))
    assert log.state.is_paused
    assert passed(log.tick(at("10:30:00"))) == [("paused", 1, at("10:30:00"))]


def test_a_disabled_definition_passes_like_a_paused_one() -> None:
    log = Log()
    log.define(job(enabled=False), at("09:30:00"))
    assert passed(log.tick(at("10:00:00"))) == [("paused", 1, at("10:00:00"))]
    assert ledger.next_fire_time(log.state, at("10:00:00")) is None


def test_deleted_job_names_no_occurrences_and_can_return(log: Log) -> None:
    log.store(ledger.delete(log.state, "nightly"), at("09:40:00"))
    assert log.tick(at("11:30:00")) == []
    assert log.state.definition is None
    log.define(job(), at("12:30:00"))
    assert due(log.tick(at("13:00:00"))) == [(at("13:00:00"), False)]


def test_cron_16_nonexistent_local_time_passes_with_a_reason() -> None:
    log = Log()
    log.define(job("30 2 * * *", timezone="America/New_York"), datetime(2027, 3, 13, 12, tzinfo=UTC))
    facts = log.tick(datetime(2027, 3, 15, 6, 29, tzinfo=UTC))
    [fact] = facts
    assert isinstance(fact, Passed)
    assert (fact.reason, fact.count, fact.scheduled_times) == (
        "dst_skip",
        1,
        (datetime(2027, 3, 14, 7, 30, tzinfo=UTC),),
    )
    assert due(log.tick(datetime(2027, 3, 15, 6, 30, tzinfo=UTC))) == [
        (datetime(2027, 3, 15, 6, 30, tzinfo=UTC), False)
    ]


def test_skipped_local_time_is_recorded_with_the_firing() -> None:
    """In New York 02:00 does not exist on 14 March; 03:00, which does, is the same instant."""
    log = Log()
    log.define(job("0 2,3 * * *", timezone="America/New_York"), datetime(2027, 3, 14, 5, tzinfo=UTC))
    [fact] = log.tick(datetime(2027, 3, 14, 7, 0, 1, tzinfo=UTC))
    assert isinstance(fact, Due)
    assert (fact.scheduled_time, fact.dst_skip) == (datetime(2027, 3, 14, 7, tzinfo=UTC), True)


def test_a_job_may_wish_its_skipped_times_shifted() -> None:
    log = Log()
    shift = {"gap": "shift"}
    log.define(job("30 2 * * *", timezone="America/New_York", dst=shift), datetime(2027, 3, 14, 5, tzinfo=UTC))
    assert due(log.tick(datetime(2027, 3, 14, 7, 30, 1, tzinfo=UTC))) == [
        (datetime(2027, 3, 14, 7, 30, tzinfo=UTC), False)
    ]


def test_skipped_local_time_is_decided_on_its_day() -> None:
    log = Log()
    log.define(job("30 2 * * *", timezone="America/New_York"), datetime(2027, 3, 13, 12, tzinfo=UTC))
    when = ledger.next_instant(log.state, datetime(2027, 3, 13, 12, tzinfo=UTC))
    assert when == datetime(2027, 3, 14, 7, 30, tzinfo=UTC)


def test_interval_counts_from_registration_then_last_trigger() -> None:
    log = Log()
    log.define(job("@every 5m"), at("09:30:07"))
    assert due(log.tick(at("09:35:07"))) == [(at("09:35:07"), False)]
    log.define(job("@every 7m"), at("09:36:00"))
    assert due(log.tick(at("09:42:07"))) == [(at("09:42:07"), False)]


def test_interval_survives_edits_that_keep_it() -> None:
    log = Log()
    log.define(job("@every 5m"), at("09:30:07"))
    log.define(job("@every 5m", description="edited"), at("09:33:00"))
    log.store(ledger.pause(log.state, "nightly"), at("09:33:30"))
    log.store(ledger.resume(log.state, "nightly"), at("09:34:00"))
    log.define(job("@every 300s", timezone="Europe/Berlin"), at("09:34:30"))
    assert due(log.tick(at("09:35:07"))) == [(at("09:35:07"), False)]


def test_changed_interval_counts_from_its_change() -> None:
    log = Log()
    log.define(job("@every 5m"), at("09:30:07"))
    log.define(job("@every 7m"), at("09:33:00"))
    log.define(job("@every 7m", tags=["a"]), at("09:34:00"))
    assert due(log.tick(at("09:40:00"))) == [(at("09:40:00"), False)]


def test_new_registration_begins_a_new_interval() -> None:
    log = Log()
    log.define(job("@every 5m"), at("09:30:00"))
    log.tick(at("09:35:00"))
    log.store(ledger.delete(log.state, "nightly"), at("09:36:00"))
    log.define(job("@every 5m"), at("09:38:00"))
    log.define(job("@every 5m", description="edited"), at("09:39:00"))
    assert log.tick(at("09:42:59")) == []
    assert due(log.tick(at("09:43:00"))) == [(at("09:43:00"), False)]
    log.define(job("@every 7m"), at("09:44:00"))
    assert due(log.tick(at("09:50:00"))) == [(at("09:50:00"), False)]


def test_instant_before_a_deletion_is_no_anchor() -> None:
    """The ticker decides on it after the job was registered again."""
    log = Log()
    log.define(job("@every 5m"), at("09:30:00"))
    log.store(ledger.delete(log.state, "nightly"), at("09:35:00.5"))
    log.define(job("@every 5m"), at("09:35:01"))
    assert due(log.tick(at("09:35:01"))) == [(at("09:35:00"), False)]
    assert due(log.tick(at("09:40:01"))) == [(at("09:40:01"), False)]


def test_a_second_within_reach_is_not_missed() -> None:
    log = Log()
    log.define(job("* * * * * *"), at("09:30:00"))
    assert due(log.tick(at("09:30:02"))) == [(at("09:30:01"), False), (at("09:30:02"), False)]


def test_long_absence_takes_several_decisions() -> None:
    log = Log()
    log.define(job("* * * * * *"), at("09:30:00"))
    now = at("10:30:00")
    first = ledger.decide_instants(log.state, now)
    assert passed(first) == [
        ("missed", ledger.MAX_INSTANTS_PER_DECISION, at("09:30:00") + ledger.MAX_INSTANTS_PER_DECISION * SECOND)
    ]
    facts = log.tick(now)
    assert sum(count for _, count, _ in passed(facts)) + len(due(facts)) == 3600
    assert [late for _, late in due(facts)] == [False, False, False]


def test_defining_the_same_again_adds_nothing(log: Log) -> None:
    assert ledger.define(log.state, job()) == []


@pytest.mark.parametrize(("before", "after"), [(1, True), (False, 0), ([1], [True])])
def test_boolean_for_a_number_is_an_edit(log: Log, before: object, after: object) -> None:
    log.define(JobDefinition.model_validate({"name": "a", "function": "f", "input": {"x": before}}), at("09:00:00"))
    edited = JobDefinition.model_validate({"name": "a", "function": "f", "input": {"x": after}})
    assert edited != log.state.definition
    assert [fact.definition for fact in ledger.define(log.state, edited)] == [edited]


def test_pausing_twice_adds_nothing(log: Log) -> None:
    log.store(ledger.pause(log.state, "nightly"), at("09:45:00"))
    assert ledger.pause(log.state, "nightly") == []
    log.store(ledger.resume(log.state, "nightly"), at("09:46:00"))
    assert ledger.resume(log.state, "nightly") == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_job_that_does_not_exist_is_named(command: str) -> None:
    with pytest.raises(JobNotFound) as refused:
        COMMANDS[command](ledger.initial, "nightly")
    assert refused.value.job == "nightly"


SCHEDULES = st.sampled_from(
    [
        *("0 * * * *", "*/7 * * * *", "15,45 10-12 * * *", "30 */2 * * *", None),
        "*/7 * * * * from 2026-11-20T02:00 until 2026-11-20T05:00",
    ]
)
INTERVALS = st.builds(
    lambda s, c: ("define", job(s, catch_up=c)),
    st.sampled_from(["@every 7m", "@every 50m"]),
    st.sampled_from(["once", "skip"]),
)
CHANGES = st.one_of(
    st.builds(lambda s, c: ("define", job(s, catch_up=c)), SCHEDULES, st.sampled_from(["once", "skip", "all"])),
    st.sampled_from(
        [("pause", None), ("resume", None), ("delete", None), ("tick", None), ("tick", None), ("tick", None)]
    ),
)


@given(st.lists(st.tuples(CHANGES, st.integers(1, 5000)), min_size=1, max_size=25))
@settings(max_examples=examples(200), deadline=None)
def test_i2_the_ledger_tiles_time(changes: list[tuple[tuple[str, JobDefinition | None], int]]) -> None:
    """Every instant that a definition in force named is in exactly one `due` or `passed`, and nothing else is."""
    log, now = Log(), at("00:00:00")
    log.define(job(), now)
    now = log.change(changes, now)
    log.tick(now)
    expected = _expected(log.facts, now)
    fired = [fact.message.scheduled_time for fact in log.facts if isinstance(fact.message, Due)]
    spans = [fact.message for fact in log.facts if isinstance(fact.message, Passed)]
    assert len(set(fired)) == len(fired)
    assert set(fired) <= set(expected)
    assert len(fired) + sum(span.count for span in spans) == len(expected)
    for span in spans:
        inside = [instant for instant in expected if span.start < instant <= span.until]
        assert len(inside) == span.count
        assert not set(inside) & set(fired)


def _expected(facts: list[Recorded[Message]], now: datetime) -> list[datetime]:
    """Recompute the ledger from the definitions in force, independent of the ticker."""
    instants: list[datetime] = []
    definition: JobDefinition | None = None
    since = now
    for recorded in [*facts, None]:
        end = getattr(recorded.message, "since", None) or recorded.time if recorded else now
        if recorded and not isinstance(recorded.message, Defined | Deleted | Paused | Resumed):
            continue
        if definition is not None and definition.schedule is not None:
            schedule = parse(definition.schedule, definition.timezone)
            instants += [o.at for o in schedule.occurrences(since, end, anchor=since)]
        since = end
        match recorded.message if recorded else None:
            case Defined() as fact:
                definition = fact.definition
            case Deleted():
                definition = None
    return instants


@given(st.lists(st.tuples(CHANGES | INTERVALS, st.integers(1, 5000)), min_size=1, max_size=12))
@settings(max_examples=examples(200), deadline=None)
def test_the_newest_fact_of_each_kind_is_enough(changes: list[tuple[tuple[str, JobDefinition | None], int]]) -> None:
    """The events that `missing_fact` requests complete a ledger read by the last event of each subject."""
    log, now = Log(), at("00:00:00")
    log.define(job(), now)
    now = log.change(changes, now)
    known = {r.subject: r for r in log.facts}
    facts = {r.sequence: r for r in known.values()}
    while (wanted := ledger.missing_fact(ledger.fold(facts[s] for s in sorted(facts)))) is not None:
        assert wanted not in facts
        facts[wanted] = log.facts[wanted - 1]
    state = ledger.fold(facts[s] for s in sorted(facts))
    later = now + timedelta(hours=3)
    assert ledger.decide_instants(state, later) == ledger.decide_instants(log.state, later)
    assert (state.definition, state.is_paused) == (log.state.definition, log.state.is_paused)


def test_nonexistent_time_is_recorded_with_a_missed_occurrence() -> None:
    """Return the two occurrences that share an instant.

    In Berlin 02:00 to 03:00 does not exist on 29 March 2026: 02:15 would have been at 01:15 UTC, which is 03:15 there. Two events for one
    instant could not both be after the watermark that the first of them moves.
    """
    log, begin = Log(), datetime(2026, 3, 29, 0, 50, tzinfo=UTC)
    log.define(job("*/15 * * * *", timezone="Europe/Berlin", catch_up="skip"), begin)
    [fact] = log.tick(begin + timedelta(hours=3))
    assert isinstance(fact, Passed)
    assert (fact.reason, fact.count) == ("missed", 12)
    assert [f"{skipped:%H:%M}" for skipped in fact.scheduled_times] == ["01:00", "01:15", "01:30", "01:45"]


def test_occurrences_of_one_instant_are_decided_together(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = datetime(2026, 3, 29, 0, 50, tzinfo=UTC)
    decisions = []
    for at_once in (1_000, 4, 3):
        monkeypatch.setattr(ledger_instants, "MAX_INSTANTS_PER_DECISION", at_once)
        log = Log()
        log.define(job("*/15 * * * *", timezone="Europe/Berlin", catch_up="skip"), begin)
        decisions.append([at for fact in log.tick(begin + timedelta(hours=3)) for at in fact.scheduled_times])  # type: ignore[union-attr]
    assert decisions[0] == decisions[1] == decisions[2]
