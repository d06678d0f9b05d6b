"""Events as text: a line each, the page of one execution, and JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ...domain import duration, events
from ...domain.access import masked
from ...domain.agent import mode_of
from ...domain.hold_up_time import HoldUpCause
from ...domain.policy import policy_of, shown
from ...domain.text import counted, printable
from .format import local, seconds
from .tables import TELLING

_USUAL: Final = 36
_LEAST: Final = 8
"""The smallest width of the details column, in characters."""


@dataclass(frozen=True, slots=True)
class Described:
    """An event in words: a verb and details."""

    sign: str
    style: str
    verb: str
    detail: str = ""


def line(recorded: events.Recorded[events.Message], *, after: str = "", width: int | None = None) -> Text:
    """Return an event as one line.

    The line holds the time, verb, job, details, `after` and execution id. If `width` is too small, the id is shortened
    or left out and the details are cut; `executions list` shows the id too.
    """
    fact, described = recorded.message, describe(recorded.message)
    text = Text()
    text.append(recorded.time.astimezone().strftime("%H:%M:%S "), style="dim")
    text.append(f" {described.sign} {described.verb:<13}", style=described.style)
    text.append(f" {getattr(fact, 'job', ''):<24}", style="bold")
    detail = "  ".join(part for part in (described.detail, after) if part)
    execution_id = getattr(fact, "execution_id", None) or ""
    if width is None:
        text.append(f" {detail:<{_USUAL}}")
    else:
        room = width - len(text) - 1
        execution_id = next(
            (prefix for prefix in (execution_id, execution_id[:TELLING]) if _fits(prefix, detail, room)), ""
        )
        beside = room - len(execution_id) - 2 if execution_id else room
        text.append(f" {_cut(detail, beside):<{min(_USUAL, beside)}}")
    text.append(f"  {execution_id}", style="dim")
    text.rstrip()
    return text


def _fits(execution_id: str, detail: str, room: int) -> bool:
    return len(execution_id) + 2 + max(len(detail), _LEAST) <= room


def _cut(detail: str, room: int) -> str:
    return detail if len(detail) <= room else f"{detail[: max(0, room - 1)]}…"


def as_json(recorded: events.Recorded[events.Message]) -> dict[str, Any]:
    return {
        "time": recorded.time,
        "sequence": recorded.sequence,
        "subject": recorded.subject,
        "fact": masked(recorded.message).document(exclude_none=True),
    }


def describe(fact: events.Message) -> Described:  # noqa: C901, PLR0911, PLR0912, PLR0915 - the table has a case for each event
    match fact:
        case events.Defined():
            schedule, zone = fact.definition.schedule, fact.definition.timezone
            return Described("+", "cyan", "defined", f"{schedule} {zone}" if schedule else "on demand")
        case events.Paused() | events.QueuePaused():
            return Described("‖", "yellow", "paused", fact.reason or "")
        case events.Resumed() | events.QueueResumed():
            return Described("▷", "cyan", "resumed", fact.reason or "")
        case events.PolicyDefined():
            fields = ", ".join(f"{name}={value}" for name, value in shown(policy_of(fact)).items())
            return Described("+", "cyan", "policy", fields or "nothing is set")
        case events.Deleted():
            return Described("-", "yellow", "deleted", fact.reason or "")
        case events.Due():
            return Described("·", "dim", "due", local(fact.scheduled_time) + (", late" if fact.catch_up else ""))
        case events.Passed():
            return Described("·", "yellow", "passed", f"{fact.count} without firing: {fact.reason}")
        case events.Planned():
            return Described("·", "dim", "planned", fact.trigger + _by_event(fact.event))
        case events.DependenciesSettled():
            runs = ", ".join(f"{run.job} {_end_of(run)}" for run in fact.runs)
            return Described("·", "dim" if fact.outcome == "met" else "yellow", "waited", f"{fact.outcome}: {runs}")
        case events.Proposed():
            agents = counted(len(fact.agents), "agent")
            return Described("·", "dim", "proposed", f"#{fact.attempt} to {agents}, {fact.needed} must acknowledge")
        case events.Acknowledged():
            return Described("·", "dim", "acknowledged", f"by {fact.name} …{fact.agent_id[-8:]}")
        case events.QuorumSettled():
            return Described("·", "dim" if fact.outcome == "reached" else "yellow", "quorum", fact.outcome)
        case events.Admitted():
            late = ", late" if fact.catch_up else ""
            return Described("▶", "cyan", "triggered", fact.trigger + late + _by_event(fact.event))
        case events.Dispatched(admits=events.Admission(catch_up=catch_up, event=event)):
            late, task = ", late" if catch_up else "", _attempt(fact.step, fact.attempt, fact.max_attempts)
            return Described("▶", "cyan", "triggered", f"{fact.trigger}{late}{_by_event(event)}, {task}")
        case events.FannedOut():
            return Described("▶", "cyan", "fanned out", f"{fact.trigger}, on {counted(len(fact.shards), 'shard')}")
        case events.Skipped():
            active = f": …{fact.active_execution_id[-8:]} is active" if fact.active_execution_id else ""
            why = f": {'; '.join(fact.refusal.message.splitlines())}" if fact.refusal else active
            return Described("↷", "yellow", "skipped", fact.reason + why)
        case events.Dispatched():
            return Described("→", "dim", "dispatched", _attempt(fact.step, fact.attempt, fact.max_attempts))
        case events.Started():
            held_up = f", held up {hold_ups(fact.held_up)}" if fact.held_up else ""
            return Described("→", "dim", "started", f"{_attempt(fact.step, fact.attempt)} by {fact.worker}{held_up}")
        case events.RetryScheduled():
            detail = f"{_attempt(fact.step, fact.attempt)}: {_error(fact.error)}, again in {fact.delay:.1f}s"
            return Described("↻", "yellow", "retrying", detail)
        case events.Advanced():
            adopted = "" if fact.adopted_from is None else f" in execution {fact.adopted_from}"
            return Described("→", "dim", "advanced", f"{fact.step} completed{adopted}")
        case events.Exhausted():
            return Described("✗", "red", "exhausted", f"{_attempt(fact.step, fact.attempt)}: {_error(fact.error)}")
        case events.Completed():
            return Described("✓", "green", "completed")
        case events.Failed():
            cancelled = f", cancelled {', '.join(fact.cancelled_steps)}" if fact.cancelled_steps else ""
            cause = "" if fact.cause is None else f", after {_error(fact.cause)}"
            step = f"{fact.step}: " if fact.step is not None else ""
            return Described("✗", "bold red", "failed", f"{step}{_error(fact.error)}{cause}{cancelled}")
        case events.Recovered():
            lost = ", ".join(f"{span.step} {span.what}" if span.step else span.what for span in fact.lost)
            return Described("↻", "yellow", "recovered", f"#{fact.recovery}: {lost} and lost")
        case events.LeaseExtended():
            return Described("·", "dim", "heartbeat", _attempt(fact.step, fact.attempt))
        case events.Released():
            is_silent = fact.reason == "lease_over"
            why = "its worker gave no sign of life in time" if is_silent else "its worker returned it or did not listen"
            return Described("↻", "yellow", "released", f"{fact.step} #{fact.attempt}: {why}")
        case events.Cancelled():
            return Described("✗", "yellow", "cancelled", fact.reason or "")
        case events.Acquired():
            return Described("·", "dim", "locked", f"until it ends; looked into after {duration.short(fact.ttl)}")
        case events.DeadLettered():
            return Described("☠", "bold red", "dead-lettered", _tries(fact.attempts))
        case events.PoisonMessage():
            return Described("☠", "bold red", "refused", f"{fact.reason} ({fact.subject})")
        case events.Replayed():
            parts = (f"#{fact.number}", "failed steps only" if fact.failed_only else None, fact.reason)
            return Described("↻", "cyan", "replayed", " ".join(filter(None, parts)))
        case events.Resolved():
            return Described("✓", "green", "resolved", fact.reason or "")
        case events.Queued():
            return Described("·", "dim", "queued", "waits for the lock")
        case events.AgentSwitched():
            return Described("‖", "yellow", mode_of(fact), fact.reason or "")
        case events.AgentGranted():
            grants = ", ".join(f"{grant.queue} ({' '.join(grant.functions)})" for grant in fact.grants)
            may = f"may get tasks of {grants}" if grants else "may get no tasks"
            if fact.shards is not None:
                may += f", and own {' '.join(fact.shards) or 'no shards'}"
            return Described("‖", "yellow", "granted", _with(may, fact.reason))
        case events.QueuePurged():
            number = "the tasks" if fact.waiting is None else counted(fact.waiting, "task")
            return Described("✗", "yellow", "purged", _with(f"{number} that waited", fact.reason))
        case events.Voided():
            place = f"{fact.stream} {fact.sequence} {fact.subject}"
            return Described("‖", "yellow", "voided", _with(place, fact.reason))
        case events.ShardsDefined():
            working = sum(shard.state is events.ShardState.ACTIVE for shard in fact.shards)
            numbers = f"{counted(len(fact.shards), 'shard')}, {working:,} active"
            return Described("+", "cyan", "defined", _with(numbers, fact.reason))
        case events.NamespacesDefined():
            names = ", ".join(namespace.name for namespace in fact.namespaces) or "none"
            return Described("+", "cyan", "defined", _with(names, fact.reason))
        case events.OwnershipAssigned():
            return Described("‖", "yellow", "assigned", f"{fact.resource} to {fact.name}: {fact.reason}")
        case events.KeyTaken():
            replaced = f", replaces {', '.join(fact.replaces)}" if fact.replaces else ""
            return Described("‖", "dim", "taken", f"unique key {fact.key[:8]}… by {fact.execution_id}{replaced}")
        case events.AgentDrainStarted():
            return Described("‖", "yellow", "draining", fact.reason or "")
        case _:
            return Described("?", "dim", str(getattr(fact, "type", type(fact).__name__)))


def _with(text: str, reason: str | None) -> str:
    return f"{text}: {reason}" if reason else text


def _by_event(event: events.EventReference | None) -> str:
    return "" if event is None else f" {event.sequence} of {event.stream}, {printable(event.subject)}"


def _attempt(step: str, attempt: int, of: int | None = None) -> str:
    return f"{step} #{attempt}" + (f" of {of}" if of else "")


def hold_ups(held_up: Sequence[events.PastHoldUp]) -> str:
    """Return in words what held up a task, and for how long."""
    return ", ".join(f"{seconds(hold_up.seconds)} by {_CAUSES[hold_up.cause]}" for hold_up in held_up)


_CAUSES: Final[dict[HoldUpCause, str]] = {
    "queue_paused": "the pause of its queue",
    "queue_limit": "the concurrency limit of its queue",
    "namespace_limit": "the quota `max_running` of its namespace",
    "queue_rate": "the rate of its queue",
    "job_limit": "the concurrency limit of its job",
    "key_limit": "the concurrency limit of its key",
    "start_rate": "the rate of its `rate_limit`",
}


def _tries(attempts: Sequence[events.Attempt]) -> str:
    """Describe how many attempts the failed step had; attempts of other steps do not count."""
    step = next((attempt.step for attempt in reversed(attempts) if attempt.error is not None), None)
    number = sum(attempt.step == step for attempt in attempts)
    if step is None:
        return "without an attempt that failed"
    return f"{step} failed at {number} attempts" if number > 1 else f"{step} failed at its only attempt"


def _error(error: events.Failure | None) -> str:
    if error is None:
        return "unknown"
    message = error.message.splitlines()[0] if error.message else ""
    return f"{error.type}: {message}" if message else error.type


@dataclass(frozen=True, slots=True)
class FactPage:
    """A line for each event; details that are too long continue on the next line."""

    facts: Sequence[events.Recorded[events.Message]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        facts = list(events.unfold(self.facts))  # one stored event may hold several
        times = [recorded.time.astimezone() for recorded in facts]
        clock = "%H:%M:%S" if len({at.date() for at in times}) == 1 else "%Y-%m-%d %H:%M:%S"
        for at, recorded in zip(times, facts, strict=True):
            described = describe(recorded.message)
            head = Text.assemble(
                (f"{at.strftime(clock)} ", "dim"), (f" {described.sign} {described.verb:<13} ", described.style)
            )
            room = max(_LEAST, options.max_width - len(head))
            first, *rest = Text(described.detail).wrap(console, room) or [Text()]
            yield _of(head, first)
            for row in rest:
                yield _of(Text(" " * len(head)), row)


def _of(head: Text, detail: Text) -> Text:
    line = head + detail
    line.rstrip()
    return line


def _end_of(run: events.DependencyRun) -> str:
    if run.hidden:
        return "is hidden from its job"
    return f"has no run since {local(run.since)}" if run.execution_id is None else run.ended or "has not ended"
