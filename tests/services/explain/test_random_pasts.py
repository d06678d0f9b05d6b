"""Random decisions of the domain pass the audit, and each instant has the answer of the ledger."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.properties import examples
from tests.services.explain.past import Past
from tocsin.domain import job_record, ledger
from tocsin.domain.events import Due, Passed
from tocsin.domain.replay import Verdict
from tocsin.services.audit import audit
from tocsin.services.explain import judge

Command: TypeAlias = tuple[str, object]

# Nights around the clock changes of these zones, one of which skips half an hour.
STARTS = [datetime(2026, 3, 28, 23, 30, tzinfo=UTC), datetime(2026, 10, 24, 23, 30, tzinfo=UTC)]
STARTS += [datetime(2026, 10, 3, 14, 0, tzinfo=UTC), datetime(2026, 11, 1, 4, 30, tzinfo=UTC)]
ZONES = ["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/New_York"]
SCHEDULES = ["*/15 * * * *", "30 2 * * *", "15,45 1-3 * * *", "0 * * * *", "@every 7m", "@every 50m", None]
VERDICTS: dict[str, set[Verdict]] = {
    "paused": {"paused", "disabled", "no-such-local-time"},
    "dst_skip": {"no-such-local-time"},
    "missed": {"missed", "no-such-local-time"},
    "superseded": {"superseded", "no-such-local-time"},
    "excluded": {"excluded"},
}
CHANGES = ["2026-03-29", "2026-10-04", "2026-10-25", "2026-11-01"]
"""The days of the clock changes; all are Sundays."""
CLOSED: list[dict[str, object]] = [
    {"exclude": [{"name": "changes", "days": CHANGES}]},
    {"exclude": [{"name": "changes", "days": CHANGES}], "shift": "next_business_day"},
    {"only": [{"name": "changes", "days": CHANGES}, {"name": "fridays", "weekdays": ["friday"]}]},
    {"blackout": [{"from": f"{day}T01:20", "to": f"{day}T04:00"} for day in CHANGES]},
]
OPTIONAL = ("dst", "exclude", "only", "blackout", "shift")


def closed(definition: dict[str, object], days: dict[str, object]) -> dict[str, object]:
    """Add calendars to a definition, as far as its schedule takes them."""
    schedule = str(definition["schedule"] or "")
    refused = {*days} if not schedule else {"shift"} if schedule.startswith("@every") else set[str]()
    return definition | {name: value for name, value in days.items() if name not in refused}


definitions = st.builds(
    closed,
    st.fixed_dictionaries(
        {
            "schedule": st.sampled_from(SCHEDULES),
            "timezone": st.sampled_from(ZONES),
            "catch_up": st.sampled_from(["once", "skip", "all"]),
            "enabled": st.sampled_from([True, True, True, False]),
        },
        optional={"dst": st.sampled_from([{"gap": "shift"}, {"fold": "both"}, {"gap": "shift", "fold": "both"}])},
    ),
    st.sampled_from([*([{}] * len(CLOSED)), *CLOSED]),
)
commands = st.lists(
    st.one_of(
        st.tuples(st.just("tick"), st.integers(1, 4 * 3_600)),
        st.tuples(st.just("tick"), st.integers(1, 20 * 60)),
        st.tuples(st.just("define"), definitions),
        st.tuples(st.sampled_from(["pause", "resume", "delete"]), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 3 * 3_600)),
    ),
    max_size=12,
)


def lived(start: datetime, first: dict[str, object], then: list[Command]) -> Past:
    """A past from commands; inapplicable commands are left out.

    A change after a wait was requested before it.
    """
    past, now, waited = Past(), start, None
    past.defined(start.isoformat(), **first)
    doing: dict[str, Callable[[str], Past]] = {"pause": past.paused, "resume": past.resumed, "delete": past.deleted}
    for command, value in then:
        waited = waited or now if command == "wait" else waited
        now += timedelta(seconds=value if isinstance(value, int) else 7)
        past.requested(waited.isoformat() if waited else None)
        exists = past.state.definition is not None
        if command == "define" and isinstance(value, dict):
            for name in OPTIONAL:
                past.definition.pop(name, None)
            past.defined(now.isoformat(), **value)
        elif command in doing and exists:
            doing[command](now.isoformat())
        elif command == "tick":
            past.ticked(now)
        waited = waited if command == "wait" else None
    past.now = now
    return past


GAP = (STARTS[0], {"schedule": "*/15 * * * *", "timezone": "Europe/Berlin", "catch_up": "skip", "enabled": True})


@settings(max_examples=examples(150), deadline=None)
@given(start=st.sampled_from(STARTS), first=definitions, then=commands)
@example(start=GAP[0], first=GAP[1], then=[("tick", 4 * 3_600)])
def test_what_the_domain_decides_is_as_promised(start: datetime, first: dict[str, object], then: list[Command]) -> None:
    past = lived(start, first, then)
    report = audit(past.facts, patience=timedelta(days=10_000))
    assert [str(violation) for violation in report.violations] == []
    assert report.remarks == ()
    for recorded in past.facts:
        match recorded.message:
            case Due() as fact:
                [answer] = judge(past.evidence, fact.scheduled_time)
                assert (answer.verdict, answer.at, answer.definition) == ("fired", fact.scheduled_time, fact.definition)
            case Passed() as fact:
                for at in {fact.until, *fact.scheduled_times}:
                    [answer] = judge(past.evidence, at)
                    # If a nonexistent local time falls on an instant that fires, the answer covers that instant.
                    expected = VERDICTS[fact.reason] | ({"fired"} if fact.reason == "dst_skip" else set())
                    assert answer.verdict in expected, answer
    row, state = job_record.fold({}, past.facts)["job"], past.state
    assert row.deleted == (state.definition is None)
    if state.current is not None and not row.deleted:
        assert (row.created_at, row.changed_at) == (state.created_at, state.current.since)
        assert row.next_run_time == ledger.next_fire_time(state, max(row.changed_at, state.watermark or row.changed_at))
    if (upcoming := ledger.next_fire_time(past.state, past.now)) is not None:
        [answer] = judge(past.evidence, upcoming)
        assert (answer.verdict, answer.at) == ("future", upcoming)


@settings(max_examples=examples(50), deadline=None)
@given(
    start=st.sampled_from(STARTS),
    first=definitions,
    then=commands,
    asked=st.lists(st.integers(-3_600, 12 * 3_600), max_size=10),
)
def test_every_instant_is_answered_without_violation(
    start: datetime, first: dict[str, object], then: list[Command], asked: list[int]
) -> None:
    past = lived(start, first, then)
    for seconds in asked:
        at = start + timedelta(seconds=seconds)
        for answer in (*judge(past.evidence, at), *judge(past.evidence, at.replace(tzinfo=None))):
            assert answer.verdict != "unaccounted", answer
            if answer.skipped_local is None:
                assert (answer.verdict == "fired") == any(
                    isinstance(r.message, Due) and r.message.scheduled_time == answer.at for r in past.facts
                )
