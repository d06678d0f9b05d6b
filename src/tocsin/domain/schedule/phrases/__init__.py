"""English schedules of `hip-62`, and similar phrases, parsed into cron expressions.

A grammar (`phrases.lark`) parses the text into clauses. The clauses are combined into one meaning, and the meaning is written as the
smallest set of cron expressions. An ambiguous phrase is refused with a suggestion.
"""

from dataclasses import dataclass
from typing import Final

from ..errors import ScheduleError
from .clauses import ClauseSet, Interval, Marks, Pace, Times, Weekdays, Window, phrase_error
from .days import day_fields
from .hours import times_of_day

__all__ = ["parse_phrase"]


_MIDNIGHT: Final = "0 0"


@dataclass(frozen=True, slots=True)
class Phrase:
    """The cron expressions of a phrase, and warnings about parts that it left open."""

    expressions: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def parse_phrase(text: str) -> Phrase:
    """Parse English; raise ScheduleError, with another text, if it is invalid or ambiguous."""
    from .reader import read_clauses  # noqa: PLC0415 - loads lark, a heavy import that only phrases need

    clauses = read_clauses(text)
    try:
        phrases = [ClauseSet(phrase) for phrase in clauses]
        if len(phrases) > 1 and not all(phrase.has(Times, Interval) for phrase in phrases):
            raise phrase_error("with 'and every …' each part needs its own time", "every monday and friday at 9am")
        expressions = [_compose(phrase) for phrase in phrases]
    except ScheduleError as error:
        raise ScheduleError(
            error.problem, text=text, length=len(text), suggestion=error.suggestion, code=error.code
        ) from None
    return Phrase(
        tuple(dict.fromkeys(expression for phrase in expressions for expression in phrase.expressions)),
        tuple(dict.fromkeys(warning for phrase in expressions for warning in phrase.warnings)),
    )


def _compose(clauses: ClauseSet) -> Phrase:
    _check_pace(clauses)
    window = clauses.get(Window)
    times, days = times_of_day(clauses), day_fields(clauses)
    if window is not None and window.start > window.end and days != ["* * *"]:
        raise phrase_error(
            "the window runs over midnight, and it is open whose day the hours after midnight belong to",
            "two phrases, one for each side of midnight",
        )
    warnings = () if times else ("no time of day was given: midnight is meant",)
    return Phrase(tuple(f"{time} {day}" for time in times or [_MIDNIGHT] for day in days), warnings)


def _check_pace(clauses: ClauseSet) -> None:
    pace = clauses.get(Pace)
    if pace is None or pace.unit in {"second", "minute", "hour"}:
        return
    times, weekdays = clauses.get(Times), clauses.get(Weekdays)
    counts = {"day": len(times.times) if times else 1, "week": len(weekdays.days) if weekdays else 1}.get(pace.unit, 1)
    if clauses.has(Interval, Marks) or counts != pace.times:
        example = {"day": "twice a day at 8am and 8pm", "week": "twice a week on monday and thursday at 9am"}
        raise phrase_error(
            f"it promises {pace.times} times a {pace.unit} and names {counts}",
            example.get(pace.unit, f"once a {pace.unit}"),
        )
