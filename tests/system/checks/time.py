"""The ledger is complete (I2): recomputed from the definitions in force, each instant is decided once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tocsin.domain.calendar import parse
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Defined,
    DefinitionFact,
    Deleted,
    Due,
    LedgerFact,
    Passed,
    Paused,
    Recorded,
    Resumed,
)

from .everything import Everything, Violation


@dataclass(frozen=True, slots=True)
class Instant:
    """What a definition named, and while it was paused or not: an instant that fires, or a local time that is left out."""

    at: datetime
    fires: bool
    paused: bool


def time_is_tiled(everything: Everything) -> Iterator[Violation]:
    """Each instant that was named is in exactly one `due` or `passed`, up to the job's deletion."""
    for facts in everything.jobs.values():
        decisions = [recorded for recorded in facts if isinstance(recorded.message, Due | Passed)]
        yield from _spans_adjoin(facts[0].time, decisions)
        yield from _instants_are_decided(_expected(facts), decisions)


def _spans_adjoin(begin: datetime, decisions: Sequence[Recorded[LedgerFact]]) -> Iterator[Violation]:
    watermark = begin
    for recorded in decisions:
        match recorded.message:
            case Due(scheduled_time=at):
                if at <= watermark:
                    yield Violation.of("I2", f"decided again: all up to {watermark} was", recorded)
                watermark = at
            case Passed(start=start, until=until):
                if not start == watermark < until:
                    yield Violation.of("I2", f"a span that does not begin at {watermark}", recorded)
                watermark = until


def _instants_are_decided(
    expected: Sequence[Instant], decisions: Sequence[Recorded[LedgerFact]]
) -> Iterator[Violation]:
    deciding: dict[Instant, list[Recorded[LedgerFact]]] = {instant: [] for instant in expected}
    for recorded in decisions:
        decided = [instant for instant in expected if _decides(recorded.message, instant)]
        for instant in decided:
            deciding[instant].append(recorded)
        if (wrong := _wrong(recorded.message, decided)) is not None:
            yield Violation.of("I2", wrong, recorded)
    for instant, facts in deciding.items():
        if len(facts) != 1:
            yield Violation.of("I2", f"{instant.at} was decided {len(facts)} times", *facts)


def _decides(fact: LedgerFact, instant: Instant) -> bool:
    match fact:
        case Due():
            return instant.at == fact.scheduled_time and (instant.fires or fact.dst_skip)
        case Passed():
            return fact.start < instant.at <= fact.until
        case _:
            return False


def _wrong(fact: LedgerFact, decided: Sequence[Instant]) -> str | None:
    """What a decision says that does not fit the instants in it."""
    paused = [instant for instant in decided if instant.paused]
    match fact:
        case Due() if not any(instant.fires for instant in decided):
            return "it fired, and no definition named it"
        case Due() if paused:
            return "it fired while the job was paused"
        case Passed() if fact.count != len(decided):
            return f"{fact.count} instants passed, {len(decided)} were named"
        case Passed() if len(paused) != (len(decided) if fact.reason == "paused" else 0):
            return f"{len(paused)} of {len(decided)} instants were paused"
        case Passed(reason="paused" | "dst_skip") if [*fact.scheduled_times] != [instant.at for instant in decided]:
            return "the public is told of other instants"
    return None


def _expected(facts: Sequence[Recorded[LedgerFact]]) -> list[Instant]:
    """What was named up to the deletion, or as far as the job's time is decided at all. Intervals are not known here."""
    changes = [recorded for recorded in facts if isinstance(recorded.message, DefinitionFact)]
    end = changes[-1].time if isinstance(changes[-1].message, Deleted) else _watermark(facts)
    if end is None:
        return []
    definitions = {r.sequence: r.message.definition for r in changes if isinstance(r.message, Defined)}
    ends = (*(recorded.time for recorded in changes[1:]), end)
    return [
        instant
        for change, until in zip(changes, ends, strict=True)
        for instant in _named(change, min(until, end), definitions)
    ]


def _named(
    change: Recorded[LedgerFact], until: datetime, definitions: Mapping[int, JobDefinition]
) -> Iterator[Instant]:
    match change.message:
        case Defined() as fact:
            definition, paused = fact.definition, fact.paused
        case Paused() | Resumed() as fact:
            definition, paused = definitions[fact.definition], isinstance(fact, Paused)
        case _:
            return
    if definition.schedule is None:
        return
    schedule = parse(definition.schedule, definition.timezone, dst=definition.dst)
    for occurrence in schedule.occurrences(change.time, until, anchor=change.time):
        yield Instant(occurrence.at, occurrence.skipped_local is None, paused or not definition.enabled)


def _watermark(facts: Iterable[Recorded[LedgerFact]]) -> datetime | None:
    """Up to when all is decided."""
    upto: datetime | None = None
    for recorded in facts:
        match recorded.message:
            case Due(scheduled_time=at) | Passed(until=at):
                upto = at
    return upto
