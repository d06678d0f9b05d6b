"""`tocsin why`: the decision on one occurrence of a job."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from ...domain import duration
from ...domain.definition import EventTrigger
from ...domain.events import Actor, EventIgnored, Skipped
from ...domain.ids import is_execution_id
from ...domain.replay import Gap, Verdict
from ...domain.schedule.clock_changes import local_time
from ...domain.text import printable
from ...services.explain import Answer, Outcome, triggers_of
from ..input.values import JobName
from ..output import event_lines
from ..output.event_lines import FactPage
from ..output.format import seconds
from ..runtime.errors import UsageError
from ..runtime.session import Session

STYLES: Final[dict[Verdict, str]] = {
    "fired": "green",
    "future": "cyan",
    "missed": "red",
    "poison": "red",
    "unaccounted": "bold red",
    "undecided": "red",
}
"""Colour of each verdict; the others are yellow."""


def on_events(answer: Answer) -> str:
    """Return the sentences; empty: the job has no triggers."""
    triggers = triggers_of(answer)
    if not triggers:
        return ""
    facts = [fact.message for fact in answer.facts]
    reasons = Counter(fact.reason for fact in facts if isinstance(fact, EventIgnored))
    listed = ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))
    sentences = list(_delays(triggers))
    if listed:
        sentences.append(f"The newest events that started nothing: {listed}.")
    refusals = [fact.refusal for fact in facts if isinstance(fact, Skipped) and fact.refusal is not None]
    if refusals:
        newest = refusals[-1]
        sentences.append(f"The newest event that it refused, by {newest.code}: {printable(newest.message)}.")
    return " ".join(["", *sentences, f"`tocsin triggers ignored {answer.job}` lists events that started nothing."])


def _delays(triggers: Sequence[EventTrigger]) -> Iterator[str]:
    for trigger in triggers:
        source = trigger.source_text
        if trigger.debounce is not None:
            of = "of its key" if trigger.key else "of it"
            at_most = trigger.debounce.longest
            yield (
                f"An event of `{source}` starts a run when no other {of} came for {duration.short(trigger.debounce.quiet)}, "
                f"at most {duration.short(at_most)} after the first (debounce)."
            )
        if trigger.batch is not None:
            yield (
                f"Events of `{source}` start a run together: {trigger.batch.max:,} of them, or those of {duration.short(trigger.batch.within)} "
                "(batch)."
            )


def why(
    session: Session,
    job: JobName,
    time: Annotated[
        str | None,
        typer.Argument(
            metavar="TIME",
            help="A date and time such as 2026-11-20T09:00, without an offset in the job's time zone. "
            "Default: the latest occurrence of its schedule, or the following occurrence if a pause came since.",
        ),
    ] = None,
) -> None:
    """Explain why a job ran or did not run at a time.

    Prints the decision and the events that led to it.

    Example: `tocsin why nightly 2026-11-20T09:00`
    """
    at = _time(time)
    answers = session.ask(lambda operator: operator.why(job, at))
    assumed = at is not None and at.tzinfo is None
    session.output.answer(
        [as_json(answer) for answer in answers],
        lambda: [line for answer in answers for line in _page(answer, twice=len(answers) > 1, assumed=assumed)],
    )


def _time(written: str | None) -> datetime | None:
    if written is None:
        return None
    try:
        return datetime.fromisoformat(written)
    except ValueError:
        form = "an ISO date and time such as 2026-11-20T09:00, 2026-11-20T09:00Z or 2026-11-20T09:00+01:00"
        advice = (
            f"`tocsin executions show {written}` explains this execution"
            if is_execution_id(written)
            else f"write {form}"
        )
        raise UsageError(f"TIME is {written!r}: {advice}", code="invalid-time") from None


_SAME_NAMES: Final = (
    *("job", "at", "timezone", "verdict", "schedule", "definition", "before", "after", "since", "by", "reason"),
    *("exclusion", "moved_to", "caught_up", "execution_id"),
)
"""Fields of an answer that have the same names in JSON."""


def as_json(answer: Answer) -> dict[str, Any]:
    return {
        **{name: getattr(answer, name) for name in _SAME_NAMES},
        "local": local_time(answer.timezone, answer.at).isoformat(),
        "sentence": sentence(answer),
        "local_time_exists": answer.local_exists and answer.skipped_local is None,
        "repeated_local_time": answer.repeated,
        "late_by_seconds": answer.late_by,
        "no_leader": None if answer.gap is None else {"start": answer.gap.start, "end": answer.gap.end},
        "outcome": _outcome_json(answer.outcome),
        "backfills": [
            {"backfill": run.backfill, "execution_id": run.execution_id, "outcome": _outcome_json(run.outcome)}
            for run in answer.backfills
        ],
        "facts": [event_lines.as_json(recorded) for recorded in answer.facts],
    }


def _outcome_json(outcome: Outcome | None) -> dict[str, Any] | None:
    if outcome is None:
        return None
    fields = asdict(outcome)
    fields["start_delay_seconds"] = fields.pop("start_delay")
    return {name: value for name, value in fields.items() if name not in {"execution_id", "by", "acknowledgements"}}


def _page(answer: Answer, *, twice: bool, assumed: bool) -> list[RenderableType]:
    wall_time = _occurrence(answer, answer.at)
    zone = f", in the job's time zone, {answer.timezone}" if assumed else ""
    reading = (", the second time" if answer.repeated else ", the first time") if twice else ""
    heading = Text.assemble(
        (answer.job, "bold"), f"  {wall_time} = {answer.at:%Y-%m-%d %H:%M:%S}{_fraction(answer.at)}Z{zone}{reading}"
    )
    page: list[RenderableType] = [heading, Text(sentence(answer), style=STYLES.get(answer.verdict, "yellow"))]
    page += [
        Text(f"Backfill `{backfill.backfill}` ran it, and {_describe(backfill.outcome)}.")
        for backfill in answer.backfills
    ]
    if near := _nearest(answer):
        page.append(Text(near, style="dim"))
    return [*page, FactPage(answer.facts), Text()]


def sentence(answer: Answer) -> str:
    """Return the sentences on the decision, and on events of its triggers."""
    events = "" if answer.verdict in {"fired", "before-the-job", "after-deletion"} else on_events(answer)
    return f"{_decision(answer)}{events}"


def _decision(answer: Answer) -> str:  # noqa: C901, PLR0911, PLR0912 - one line an answer is what this table is for
    since = _clock(answer, answer.since) if answer.since else "an unknown time"
    by = _actor(answer.by, answer.reason)
    match answer.verdict:
        case "fired":
            return f"It fired{_late(answer)}, and {_describe(answer.outcome)}.{_delay(answer)}{_held_up(answer)}"
        case "paused":
            return f"It did not fire: the job was paused since {since}{by}."
        case "disabled":
            return f"It did not fire: its definition disables it since {since}{by}."
        case "no-such-local-time":
            shown = f"{answer.skipped_local:%H:%M:%S}" if answer.skipped_local else "that time"
            return f"It did not fire: {shown} does not exist that day in {answer.timezone}: the clocks skip it."
        case "missed":
            return f"It was missed: {_gap(answer)}. The miss was recorded {_length(answer.late_by)} after the scheduled time, without catch-up."
        case "superseded":
            change = f"changed at {since}{by}, before the ticker decided on this time"
            gap = _gap(answer)
            return f"It did not fire: the job was {change}, and its new schedule does not name it. {gap[0].upper()}{gap[1:]}."
        case "poison":
            return "It did not fire: Tocsin's own decision on it failed, which is a defect. The log of the stages has the error."
        case "excluded":
            return f"It did not fire: {_exclusion(answer)}."
        case "future-excluded":
            return f"It is in the future; it will not fire: {_exclusion(answer)}."
        case "not-scheduled" if answer.repeated:
            return f"Not scheduled: this local time occurs twice, and `{answer.schedule}` fires the first time only."
        case "not-scheduled":
            return (
                f"Not scheduled: `{answer.schedule}` in {answer.timezone} does not name that time.{_triggered(answer)}"
            )
        case "on-demand":
            return f"Not scheduled: since {since}{by} the job has no schedule and runs only when it is triggered.{_triggered(answer)}"
        case "undecided":
            late = _length(answer.late_by)
            cause = _gap(answer) if answer.gap else "the log records no gap in leadership"
            return f"It was due {late} ago, and no ticker has decided on it yet: {cause}. A ticker will decide and record it."
        case "unaccounted":
            return "No decision is recorded, although later decisions are: an invariant is broken. Run `tocsin audit`."
        case "future":
            return "It is in the future; it will fire unless something changes."
        case "future-paused":
            return f"It is in the future; it will not fire unless the job is resumed: it is paused since {since}{by}."
        case "future-disabled":
            return f"It is in the future; it will not fire: the definition disables it since {since}{by}."
        case "before-the-job":
            return f"The job did not exist yet: it was registered at {since}{by}."
        case "after-deletion":
            return f"The job did not exist any more: it was deleted at {since}{by}."


def _exclusion(answer: Answer) -> str:
    """Return the calendar or the blackout that excludes it, and its other time."""
    reason = answer.exclusion or "its calendars exclude it"
    return reason if answer.moved_to is None else f"{reason}. Its time moves to {_occurrence(answer, answer.moved_to)}"


def _describe(outcome: Outcome | None) -> str:  # noqa: C901, PLR0911 - one line a status
    if outcome is None:
        return "the log has no execution of it: it is not planned yet, or was archived"
    if outcome.shards is not None:
        return f"{outcome.execution_id} fanned out: {outcome.shards}"
    tries = f" after {outcome.attempts} attempts" if outcome.attempts > 1 else ""
    error = f": {outcome.error}" if outcome.error else ""
    match outcome.status:
        case "skipped" if outcome.active_execution_id:
            return f"was skipped: execution {outcome.active_execution_id} was still active, and the job's overlap policy is skip"
        case "skipped":
            return f"was skipped: {outcome.reason}"
        case "planned":
            return f"execution {outcome.execution_id} is waiting for {_awaited(outcome)}"
        case "pending" if outcome.starts_at is not None:
            return f"execution {outcome.execution_id} is waiting for its start"
        case "pending":
            reasons = "; ".join(dict.fromkeys(hold_up.message for hold_up in outcome.held_up_by))
            return f"execution {outcome.execution_id} is waiting for a worker{reasons and f': {reasons}'}"
        case "running":
            return f"execution {outcome.execution_id} is running{error and f' again{error}'}"
        case "cancelled":
            return f"execution {outcome.execution_id} was cancelled{_actor(outcome.by, outcome.reason)}"
        case "failed":
            suffix = "; a dead letter is kept" if outcome.dead_lettered else ""
            return f"execution {outcome.execution_id} failed{tries}{error}{suffix}"
        case _:
            return f"execution {outcome.execution_id} {outcome.status}{tries}"


def _awaited(outcome: Outcome) -> str:
    if outcome.waits_for_jobs:
        circle = f", which wait for each other in a circle: {outcome.circle}" if outcome.circle else ""
        return f"runs of {', '.join(outcome.waits_for_jobs)}{circle}"
    if outcome.acknowledgements is not None:
        return f"acknowledgements of agents: {outcome.acknowledgements}"
    return "its turn"


def _triggered(answer: Answer) -> str:
    return (
        f" `tocsin executions list --job {answer.job}` lists triggered runs, "
        "and `tocsin executions show ID` says what a run waits for."
    )


def _late(answer: Answer) -> str:
    if not answer.caught_up:
        return ""
    return f" {_length(answer.late_by)} late, by catch-up ({_gap(answer)})"


def _delay(answer: Answer) -> str:
    """Return the sentence on the jitter of the job; empty: it delayed no start."""
    outcome = answer.outcome
    if outcome is None or outcome.start_delay is None:
        return ""
    until = f", until {_clock(answer, outcome.starts_at)}" if outcome.starts_at else ""
    return f" The jitter of the job delayed its start by {_length(outcome.start_delay)}{until}."


def _held_up(answer: Answer) -> str:
    """Return the sentence on what held back its tasks; empty: nothing did."""
    held_up = () if answer.outcome is None else answer.outcome.held_up
    return f" Before workers got its tasks, they were held up {event_lines.hold_ups(held_up)}." if held_up else ""


def _gap(answer: Answer) -> str:
    gap: Gap | None = answer.gap
    if gap is None:
        return "the leading ticker did not decide on it in time"
    start = f"from {_clock(answer, gap.start)}" if gap.start else "before"
    return (
        f"no ticker led {start} to {_clock(answer, gap.end)}"
        if gap.end
        else f"no ticker leads since {_clock(answer, gap.start or answer.at)}"
    )


def _actor(by: Actor | None, reason: str | None) -> str:
    return (f" by {by.identity}" if by else "") + (f" ({reason})" if reason else "")


def _nearest(answer: Answer) -> str:
    near = [("before", answer.before), ("after", answer.after)]
    times = [f"the occurrence {word} is {_occurrence(answer, at)}" for word, at in near if at is not None]
    return f"By the schedule of that time, {' and '.join(times)}." if times and answer.verdict != "fired" else ""


def _clock(answer: Answer, at: datetime | None) -> str:
    return "" if at is None else local_time(answer.timezone, at).strftime("%Y-%m-%d %H:%M:%S %z")


def _occurrence(answer: Answer, at: datetime) -> str:
    """Format an occurrence in the job's time zone, with its fraction of a second."""
    local = local_time(answer.timezone, at)
    return f"{local:%Y-%m-%d %H:%M:%S}{_fraction(at)} {local:%z}"


def _fraction(at: datetime) -> str:
    return f".{at.microsecond:06}".rstrip("0") if at.microsecond else ""


def _length(duration_s: float) -> str:
    return seconds(duration_s) if duration_s < _HOUR_S else duration.short(round(duration_s))


_HOUR_S: Final = 3_600
