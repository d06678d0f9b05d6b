"""Filters over subjects: of one job or execution, or of all."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from ..domain import events as e
from .names import (
    ANY,
    DEFAULT_QUEUE,
    OUTSIDE_INPUTS,
    PUBLIC_INPUTS,
    SCOPE_TOKENS,
    STREAMS,
    Stream,
    stream_of,
    token,
)
from .paths import KINDS, TAILS, ledger_subjects, namespaces, policy, silences, trigger

OPENINGS: Final = tuple(f"execution.*.*.{fact}" for fact in ("planned", "planned.dependent", "admitted", "admitted.>"))
"""Filters over the events that open an execution.

An execution that waits for other jobs, or for acknowledgements, is `planned.dependent`. The last is for admissions that are tasks too:
`admitted.<step>.<attempt>`.
"""
_OUTSIDE: Final = (PUBLIC_INPUTS, f"{OUTSIDE_INPUTS}*.")
"""The beginnings of filters over the requests of all programs outside."""
PUBLIC_TRIGGER_FILTERS: Final = tuple(f"{prefix}trigger.>" for prefix in _OUTSIDE)
PUBLIC_CANCEL_FILTERS: Final = tuple(f"{prefix}cancel.>" for prefix in _OUTSIDE)
DEPENDENTS: Final = "execution.*.*.planned.dependent"
"""A filter over the executions that depend on runs of other jobs, or need acknowledgements of agents."""
LOCKED_COMPLETIONS: Final = "execution.*.*.completed.locked"
"""A filter over the completions of executions that held a lock."""
COMPLETIONS: Final = ("execution.*.*.completed", LOCKED_COMPLETIONS)
ENDINGS: Final = (*COMPLETIONS, *(f"execution.*.*.{end}" for end in ("failed", "cancelled", "skipped")))
"""Filters over the events that end an execution."""


def ends(job: str, *kinds: str) -> tuple[str, ...]:
    """Return filters over ends of executions of a job, such as `completed`."""
    patterns = (pattern for pattern in ENDINGS if pattern.split(".")[3] in kinds)
    return _of_job(job, patterns)


def _of_job(job: str, patterns: Iterable[str]) -> tuple[str, ...]:
    return tuple(pattern.replace(ANY, token(job), 1) for pattern in patterns)


def covers(opened: str, wanted: str) -> bool:
    """Return whether a filter matches every subject that another filter matches."""
    wide, narrow = opened.split("."), wanted.split(".")
    for number, part in enumerate(wide):
        if part == ">":
            return len(narrow) > number
        if number >= len(narrow) or narrow[number] == ">" or part not in {"*", narrow[number]}:
            return False
    return len(wide) == len(narrow)


def overlap(one: str, other: str) -> bool:
    """Return whether a subject exists that two filters match."""
    first, second = one.split("."), other.split(".")
    for left, right in zip(first, second, strict=False):
        if ">" in {left, right}:
            return True
        if left != right and "*" not in {left, right}:
            return False
    return len(first) == len(second)


def openings(job: str = ANY) -> tuple[str, ...]:
    """Return filters over the events that open executions of a job."""
    return _of_job(job, OPENINGS)


def runs(job: str) -> tuple[str, ...]:
    """Return filters over the events that open or end executions of a job."""
    return _of_job(job, (*OPENINGS, *ENDINGS))


def tasks(queue: str) -> tuple[str, str]:
    """Return the filters of a queue's tasks, which together cover all of them.

    The second is for tasks that admit their execution. Tasks of the default queue do not name it.
    """
    tail = "*.*" if queue == DEFAULT_QUEUE else f"*.*.{token(queue)}"
    return f"execution.*.*.dispatched.{tail}", f"execution.*.*.admitted.{tail}"


ALL_TASKS: Final = ("execution.*.*.dispatched.>", "execution.*.*.admitted.>")
"""Filters over the tasks of all queues. An admission of a graph is no task, and its subject ends before the step."""


def agent_events(name: str = "*", agent_id: str = "*") -> str:
    """Return a filter over the events of agents, all by default."""
    return f"agent.{name}.{agent_id}.*"


def queue_events() -> str:
    return "queue.*.*"


def job_filters(job: str) -> dict[Stream, tuple[str, ...]]:
    """Return filters over everything about a job: events, inputs and public events."""
    of = token(job)
    spellings = dict.fromkeys((of, job))  # the public may write the dots of a name as they are
    patterns = tuple(pattern for name in spellings for pattern in (f"trigger.{name}", f"cancel.{name}.*"))
    public = (f"{prefix}{pattern}" for prefix in _OUTSIDE for pattern in patterns)
    requests = (trigger(job), trigger(job, ANY), f"cancel.{of}.*", *public)
    kinds = ("ledger", "execution", "lock", "dead-letter", "report")
    filters = (*(f"{kind}.{of}.>" for kind in kinds), *requests, f"cron.*.{of}", f"cron.answer.{of}.>")
    return {stream: tuple(name for name in filters if stream_of(name) is stream) for stream in STREAMS}


def locks(job: str) -> tuple[str, str]:
    """Return filters over the events of the locks of a job and its shards."""
    return f"lock.{token(job)}.*", f"lock.{token(job)}.*.*"


def started(job: str, execution_id: str) -> str:
    """Return a filter over the starts of the steps of an execution."""
    return f"execution.{token(job)}.{execution_id}.started.>"


def audit_filters(job: str | None = None, *, runs: bool = False) -> tuple[str, ...]:
    """Return filters over the requests that users made, for one job or for all.

    With `runs`, they also find the ends of executions.
    """
    of = token(job or ANY)
    return (
        *ledger_subjects(job or ANY, "defined", "paused", "resumed", "deleted"),
        *(("trigger.>", *PUBLIC_TRIGGER_FILTERS) if job is None else _triggers(job)),
        f"execution.{of}.*.cancelled",
        *((f"execution.{of}.*.{end}" for end in ("completed", "completed.locked", "failed")) if runs else ()),
        f"dead-letter.{of}.*.replayed.>",
        f"dead-letter.{of}.*.resolved",
        silences(),  # one scope for all jobs
        *((*_OF_INSTALLATION, filter_for("repair.voided")) if job is None else ()),
    )


def change_filters(job: str | None = None) -> tuple[str, ...]:
    """Return filters over the changes in the ledger, of one job or of everything."""
    of_jobs = ledger_subjects(job or ANY, "defined", "paused", "resumed", "deleted")
    if job is not None:
        return of_jobs
    return (*of_jobs, *_OF_INSTALLATION, silences(), filter_for("repair.voided"))


_OF_INSTALLATION: Final = (
    *("agent.*.*.switched", "agent.*.*.granted", "agent.*.*.drain-started"),
    *(queue_events(), "shards.*.shards-defined", policy(), namespaces()),
)


def _triggers(job: str) -> Iterator[str]:
    """Yield the subjects of a job's triggers, in each spelling of its name."""
    yield from (trigger(job), trigger(job, ANY))
    spellings = dict.fromkeys((token(job), job))
    yield from (f"{prefix}trigger.{name}" for prefix in _OUTSIDE for name in spellings)


def filter_for(pattern: str) -> str:
    """Return a filter over all jobs, e.g. `filter_for("execution.admitted")`."""
    kind, _, decision = pattern.partition(".")
    if kind in SCOPE_TOKENS:
        place = ".*" * (SCOPE_TOKENS[kind] - 1)
        return f"{kind}{place}.{decision}{'.>' if f'{kind}.{decision}' in _LONGER else ''}"
    match kind:
        case "report":
            return f"report.*.*.{decision}.>"
        case "trigger" | "cancel" | "change" | "enqueue" | "public":
            return f"{pattern}.>"
        case "mq":
            return f"mq.{decision}.>"
        case _:
            raise ValueError(f"no filter for {pattern!r}")


def filters_of(kind: type[e.Message]) -> tuple[str, ...]:
    """Return filters over all messages of a type."""
    if kind in _ALL_OF:
        return _ALL_OF[kind]
    if issubclass(kind, e.LockFact):
        stored = e.type_of(kind)
        return f"lock.*.{stored}", f"lock.*.*.{stored}"
    return (filter_for(_pattern_of(kind)),)


def _pattern_of(kind: type[e.Message]) -> str:
    """Return the argument of `filter_for` for the events of a type."""
    stored = e.type_of(kind)
    return next(f"{prefix}.{stored}" for base, (prefix, _) in KINDS.items() if issubclass(kind, base))


_LONGER: Final = frozenset(map(_pattern_of, {*TAILS, e.Dispatched} - {e.Planned, e.Completed}))
"""The events whose subjects go on after their type."""
_ALL_OF: Final[dict[type[e.Message], tuple[str, ...]]] = {
    e.Dispatched: ALL_TASKS,
    e.Planned: ("execution.*.*.planned", DEPENDENTS),
    e.Completed: COMPLETIONS,
    e.CronTriggered: ("cron.triggered.*",),
    e.CronSkipped: ("cron.skipped.*",),
    e.CronMissed: ("cron.missed.*",),
    e.CronAlert: ("cron.alert.*",),
    e.CronAnswer: ("cron.answer.*.*", "cron.answer.*.*.*"),
    e.Report: ("report.>",),
    e.OutputLine: ("output.*.*.*.*.*",),
    e.EventIgnored: ("event.*.*",),
    e.StepProgress: ("progress.*.*.*.*.*",),
    e.HeartbeatDetails: ("heartbeat.*.*.*.*.*",),
    e.Trigger: ("trigger.>",),
    e.CancelRequest: ("cancel.>",),
    e.ChangeRequest: ("change.>",),
    e.Enqueued: ("enqueue.>",),
    e.Envelope: ("mq.scheduled.>", "mq.team.>"),
    e.Completion: ("mq.scheduler.complete.>",),
    e.MqCancel: ("mq.scheduler.cancel.>",),
}


@lru_cache(maxsize=1_024)
def _pattern(*filters: str) -> re.Pattern[str]:
    wildcards = {"*": r"[^.]+", ">": r"[^.]+(?:\.[^.]+)*"}
    return re.compile(
        "|".join(r"\.".join(wildcards.get(part) or re.escape(part) for part in one.split(".")) for one in filters)
    )


def matches(subject_filter: str, subject: str) -> bool:
    return _pattern(subject_filter).fullmatch(subject) is not None


def any_of(filters: Sequence[str]) -> Callable[[str], object]:
    """Return a test whether any of some filters covers a subject.

    Without filters, the test covers each subject.
    """
    return _pattern(*filters or (">",)).fullmatch


RECORDED: Final[Mapping[Stream, tuple[str, ...]]] = {
    Stream.LOG: (filter_for("execution.>"), filter_for("dead-letter.>")),
    Stream.LEDGER: (filter_for("ledger.>"),),
}
"""Filters over the events of each stream that the history records."""
