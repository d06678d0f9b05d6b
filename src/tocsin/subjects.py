"""Every name on the wire: streams, subjects, scopes, durables, buckets, headers. Nothing else spells one.

Subjects here are relative: the adapter puts the installation's root token (`tocsin`) in front when it talks to NATS and
takes it off again, and maps the public prefixes (`cron.trigger`, `cron.cancel`, `mq`) onto them.

    ledger.<job>.<fact>                                          one job: its definitions and its time
    execution.<job>.<id>.<decision>[.<step>[.<attempt>[.<...>]]]  one execution
    lock.<job>[.<shard>].<fact>                                  one lock
    cron.triggered.<job>, cron.skipped.<job>, cron.missed.<job>  republished to the public as they are
    leadership.<lease>.<fact>                                    who led, for whoever asks why nothing happened
    dead-letter.<job>.<id>.<fact>[.<number>]
    trigger.<job>, cancel.<job>.<id>, report.<job>.<id>.<outcome>.<step>.<attempt>.<delivery>, timer.<job>.<id>.retry.<step>.<attempt>   inputs
    enqueue.<job>.<id>                                           inputs too: jobs that are registered nowhere
    delay.<job>.<id>.retry.<step>.<attempt>                      the server's schedules, whose targets are timers
    mq.scheduled.<job>, mq.scheduler.complete.<job>.<id>         tasks and answers of executors outside, as hip-62 names them

`trigger.>` and `cancel.>` lie in the ledger's stream: the log republishes under `cron.`, and a stream may not republish
into subjects that it captures itself.
"""

import re
from enum import StrEnum
from functools import lru_cache
from typing import Final

from pydantic import ValidationError

from .domain import events as e
from .domain.definition import STORED
from .domain.unreadable import problems


class Stream(StrEnum):
    """The streams, by the part of their name behind the root: `TOCSIN_LEDGER`."""

    LEDGER = "LEDGER"
    LOG = "LOG"
    MQ = "MQ"


class Bucket(StrEnum):
    """The KV buckets: projections and leases only."""

    DEFINITIONS = "definitions"
    LOCKS = "locks"
    LEADER = "leader"
    CURSORS = "cursors"
    INSTALLATION = "installation"
    TOKENS = "tokens"
    ANSWERS = "answers"


CAPTURED: Final[dict[Stream, tuple[str, ...]]] = {
    Stream.LEDGER: ("ledger.>", "trigger.>", "cancel.>", "enqueue.>", "leadership.>"),
    Stream.LOG: ("execution.>", "lock.>", "cron.>", "dead-letter.>", "report.>", "timer.>", "delay.>"),
    Stream.MQ: ("mq.scheduled.>", "mq.scheduler.complete.>"),
}
ANNOUNCED: Final = "cron.>"
TICKER_LEASE: Final = "ticker"
RECOVERER_LEASE: Final = "recoverer"
ARCHIVER_LEASE: Final = "archiver"
ARCHIVE_STATE: Final = "archive"
"""The key in `cursors` that says how far the archive goes."""
INSTALLATION_KEY: Final = "report-key"
DEFAULT_QUEUE: Final = "default"
ABSENT: Final = "-"  # no delivery named
ANY: Final = "*"
"""No name, though a server stores what somebody publishes under it; read again it would stand for every name."""

# Durable consumers that others than their own stage speak of. An executor's durable is its queue's.
LOCK_KEEPER: Final = "lock-keeper"
LOCK_KEEPER_ENDS: Final = "lock-keeper-ends"
DAG_ADVANCER: Final = "dag-advancer"
DAG_ADVANCER_REPORTS: Final = "dag-advancer-reports"
DAG_ADVANCER_TIMERS: Final = "dag-advancer-timers"
RETRIER: Final = "retrier"
MQ_BRIDGE: Final = "mq-bridge"
RECOVERER: Final = "recoverer"
"""No durable: a follower with a cursor."""
JOB_EXECUTORS: Final = "job-executors"
REPLAYS: Final = "planner-replays"


def executors(queue: str) -> str:
    """The durable that the executors of a queue share."""
    return JOB_EXECUTORS if queue == DEFAULT_QUEUE else f"queue-{token(queue)}"


def queue_of(durable: str) -> str | None:
    """The queue whose executors share a durable; None: that is somebody else's."""
    if durable == JOB_EXECUTORS:
        return DEFAULT_QUEUE
    return name(durable.removeprefix("queue-")) if durable.startswith("queue-") else None


def cursor(stream: Stream, durable: str | None = None) -> str:
    """The key in `cursors` of the sequence up to which all is decided: for one durable, else for a whole stream."""
    return stream.value if durable is None else f"{stream.value}.{durable}"


def tasks(queue: str) -> str:
    """The filter of a queue's tasks; those of the default queue do not name it."""
    return "execution.*.*.dispatched.*.*" + ("" if queue == DEFAULT_QUEUE else f".{token(queue)}")


@lru_cache(maxsize=16_384)
def token(name: str) -> str:
    """A job's or queue's name as one subject token: reversible, since names hold no underscore."""
    return name.replace(".", "_")


def name(of_token: str) -> str:
    """The name that `token` made a token of."""
    return of_token.replace("_", ".")


def stream_of(subject: str) -> Stream:
    """The stream that stores a subject."""
    if subject.startswith(("ledger.", "trigger.", "cancel.", "enqueue.", "leadership.")):
        return Stream.LEDGER
    return Stream.MQ if subject.startswith("mq.") else Stream.LOG


# --- scopes: what one guard covers -----------------------------------------------------------------------------------


def ledger(job: str) -> str:
    """The scope of a job's ledger."""
    return f"ledger.{token(job)}.>"


def definition(job: str) -> str:
    """The subject of a job's definitions."""
    return f"ledger.{token(job)}.defined"


def execution(job: str, execution_id: str) -> str:
    """The scope of an execution."""
    return f"execution.{token(job)}.{execution_id}.>"


def lock(job: str, shard: str | None = None) -> str:
    """The scope of a job's lock, or of one of its shards'."""
    return f"lock.{token(job)}.*" if shard is None else f"lock.{token(job)}.{token(shard)}.*"


def acquisitions(job: str) -> str:
    """The subject of all that ever acquired a job's lock."""
    return f"lock.{token(job)}.acquired"


def dead_letter(job: str, id: str) -> str:  # noqa: A002 - the field is called so
    """The scope of a dead letter."""
    return f"dead-letter.{token(job)}.{id}.>"


def covers(scope: str, subject: str) -> bool:
    """Whether a subject lies in a scope: below it (`.>`), one token below it (`.*`), or at it."""
    if scope.endswith(".>"):
        return subject.startswith(scope[:-1])
    if scope.endswith(".*"):
        return subject.startswith(scope[:-1]) and "." not in subject[len(scope) - 1 :]
    return subject == scope


def scope_of(message: e.Message) -> str:
    """The scope that guards a fact; an announcement is guarded by its own subject."""
    match message:
        case e.ExecutionFact():
            return execution(message.job, message.execution_id)
        case e.LedgerFact():
            return ledger(message.job)
        case e.LockFact():
            return lock(message.job, message.shard)
        case e.DeadLetterFact():
            return dead_letter(message.job, message.id)
        case _:
            return subject_of(message)


# --- subjects --------------------------------------------------------------------------------------------------------


def subject_of(message: e.Message) -> str:  # noqa: C901, PLR0911, PLR0912 - one line a name is what this table is for
    """The subject that a fact, an input or an announcement is stored under."""
    match message:
        case e.Dispatched():
            queue = "" if message.queue == DEFAULT_QUEUE else f".{token(message.queue)}"
            return f"{_execution(message)}.dispatched.{message.step}.{message.attempt}{queue}"
        case e.Started():
            return f"{_execution(message)}.started.{message.step}.{message.attempt}.{message.delivery}"
        case e.RetryScheduled():
            return f"{_execution(message)}.retry-scheduled.{message.step}.{message.attempt}"
        case e.Advanced() | e.Exhausted():
            return f"{_execution(message)}.{message.type}.{message.step}"
        case e.Recovered():
            return f"{_execution(message)}.recovered.{message.recovery}"
        case e.Planned() | e.Admitted() | e.Skipped() | e.Completed() | e.Failed() | e.Cancelled():
            return f"{_execution(message)}.{message.type}"
        case e.Defined() | e.Paused() | e.Resumed() | e.Deleted() | e.Due() | e.Passed():
            return f"ledger.{token(message.job)}.{message.type}"
        case e.Acquired() | e.Queued():
            shard = "" if message.shard is None else f".{token(message.shard)}"
            return f"lock.{token(message.job)}{shard}.{message.type}"
        case e.Report():
            attempted = f"{message.step}.{message.attempt}.{message.delivery or ABSENT}"
            return f"report.{token(message.job)}.{message.execution_id}.{message.outcome}.{attempted}"
        case e.RetryTimer():
            attempted = f"{message.step}.{message.attempt}"
            return f"timer.{token(message.job)}.{message.execution_id}.retry.{attempted}"
        case e.LeaseTimer():
            claimed = f"{message.step}.{message.attempt}.{message.delivery}"
            return f"timer.{token(message.job)}.{message.execution_id}.lease.{claimed}"
        case e.ExpiryTimer():
            return f"timer.{token(message.job)}.{message.execution_id}.expiry"
        case e.Enqueued():
            return f"enqueue.{token(message.definition.name)}.{message.execution_id}"
        case e.Released():
            return f"{_execution(message)}.released.{message.step}.{message.attempt}.{message.task}"
        case e.Replayed():
            return f"dead-letter.{token(message.job)}.{message.id}.replayed.{message.number}"
        case e.DeadLettered() | e.Refused() | e.Resolved():
            return f"dead-letter.{token(message.job)}.{message.id}.{message.type}"
        case e.LeadershipGained() | e.LeadershipReleased() | e.LeadershipLost():
            return f"leadership.{message.lease}.{message.type}"
        case e.CronTriggered() | e.CronSkipped() | e.CronMissed():
            return f"{message.event}.{token(message.data.cron_name)}"
        case _:
            raise TypeError(f"{type(message).__name__} has no subject of its own")


def trigger(job: str) -> str:
    """The subject that asks for a run of a job."""
    return f"trigger.{token(job)}"


def cancel(job: str, execution_id: str) -> str:
    """The subject that asks for the end of an execution."""
    return f"cancel.{token(job)}.{execution_id}"


def to_cancel(subject: str) -> tuple[str, str]:
    """The job and the execution that somebody asks to end; the public may write the dots of a name as they are."""
    *job, execution_id = subject.split(".")[1:]
    return name(".".join(job)), execution_id


def handed_over(job: str) -> str:
    """The subject that executors outside take a job's tasks from (hip-62, Integration with MQ)."""
    return f"mq.scheduled.{_as_written(job)}"


def completed(subject: str) -> tuple[str, str]:
    """The job and the execution that an answer from outside is about."""
    *job, execution_id = subject.split(".")[3:]  # the public may write the dots of a name as they are
    return name(".".join(job)), execution_id


def delay(timer: e.Timer) -> str:
    """The subject of the schedule that will publish a timer; there is one schedule per subject."""
    return f"delay.{subject_of(timer).removeprefix('timer.')}"


def about(job: str) -> dict[Stream, tuple[str, ...]]:
    """Filters over everything that speaks of a job: its facts, its inputs and what the public is told of it."""
    of = token(job)
    spellings = dict.fromkeys((of, job))  # the public may write the dots of a name as they are
    asked = (filter_ for one in spellings for filter_ in (f"trigger.{one}", f"cancel.{one}.*"))
    kinds = ("execution", "lock", "dead-letter", "report", "timer", "delay")
    return {
        Stream.LEDGER: (f"ledger.{of}.>", *asked),
        Stream.LOG: (*(f"{kind}.{of}.>" for kind in kinds), f"cron.*.{of}"),
    }


def of_ledger(job: str, *facts: str) -> tuple[str, ...]:
    """The subjects of some facts of a job's ledger, e.g. `due` and `passed`."""
    return tuple(f"ledger.{token(job)}.{fact}" for fact in facts)


def leadership(lease: str) -> str:
    """A filter over who held a lease, and when."""
    return f"leadership.{lease}.*"


def terminal(job: str, execution_id: str) -> tuple[str, ...]:
    """The subjects that can end an execution."""
    prefix = f"execution.{token(job)}.{execution_id}"
    return tuple(f"{prefix}.{end}" for end in ("completed", "failed", "cancelled", "skipped"))


OPENINGS: Final = tuple(f"execution.*.*.{fact}" for fact in ("planned", "admitted"))
"""Filters over the facts that open an execution, one or both of them."""
ENDINGS: Final = tuple(f"execution.*.*.{end}" for end in ("completed", "failed", "cancelled", "skipped"))
"""Filters over the facts that end one; none has a longer subject."""


@lru_cache(maxsize=1_024)
def _pattern(subject_filter: str) -> re.Pattern[str]:
    wildcards = {"*": r"[^.]+", ">": r".+"}
    return re.compile(r"\.".join(wildcards.get(part) or re.escape(part) for part in subject_filter.split(".")))


def matches(subject_filter: str, subject: str) -> bool:
    """Whether a filter with wildcards covers a subject."""
    return _pattern(subject_filter).fullmatch(subject) is not None


def is_ending(subject: str) -> bool:
    """Whether a subject of `OPENINGS` or `ENDINGS` ends its execution."""
    return subject.rpartition(".")[2] not in {"planned", "admitted"}


def scope_around(subject: str) -> str:
    """The scope of the execution that a subject of `OPENINGS` or `ENDINGS` belongs to."""
    return f"{subject.rpartition('.')[0]}.>"


def admissions(job: str, execution_id: str) -> tuple[str, ...]:
    """The subjects that say whether an execution may run."""
    prefix = f"execution.{token(job)}.{execution_id}"
    return f"{prefix}.admitted", f"{prefix}.skipped"


def announcement(event: str, job: str) -> str:
    """The subject of a public event of a job: `triggered`, `skipped` or `missed`."""
    return f"cron.{event}.{token(job)}"


def lock_key(job: str) -> str:
    """The key that shows a job's lock (hip-62, Distributed Locking)."""
    return f"scheduler.lock.{_as_written(job)}"


def _as_written(job: str) -> str:
    """A name with its dots, as hip-62 writes it, unless they make an empty token."""
    return job if all(job.split(".")) else token(job)


def reports(task: e.Dispatched) -> str:
    """A filter over the reports on one attempt, whatever their outcome and delivery."""
    return reports_on(task.job, task.execution_id, task.step, task.attempt)


def reports_on(job: str, execution_id: str, step: str, attempt: int) -> str:
    """The same, for whoever has no task at hand."""
    return f"report.{token(job)}.{execution_id}.*.{step}.{attempt}.*"


def claims(task: e.Dispatched) -> str:
    """A filter over the claims of one attempt."""
    return f"{_execution(task)}.started.{task.step}.{task.attempt}.*"


def audited(job: str | None = None) -> tuple[str, ...]:
    """Filters over what somebody asked for: of one job, or of all."""
    of = ANY if job is None else token(job)
    return (
        *of_ledger(job or ANY, "defined", "paused", "resumed", "deleted"),
        "trigger.>" if job is None else trigger(job),
        f"execution.{of}.*.cancelled",
        f"dead-letter.{of}.*.replayed.*",
        f"dead-letter.{of}.*.resolved",
    )


def every(pattern: str) -> str:
    """A filter over all jobs, e.g. `every("execution.admitted")` or `every("ledger.due")`."""
    kind, _, decision = pattern.partition(".")
    match kind:
        case "execution" | "dead-letter":
            tail = ".>" if decision in _LONGER else ""
            return f"{kind}.*.*.{decision}{tail}"
        case "ledger" | "leadership":
            return f"{kind}.*.{decision}"
        case "report":
            return f"report.*.*.{decision}.>"
        case "timer":
            return f"timer.*.*.{decision}" + ("" if decision == "expiry" else ".>")
        case "trigger" | "cancel" | "enqueue":
            return f"{kind}.>"
        case "mq":
            return f"mq.{decision}.>"
        case _:
            raise ValueError(f"no filter for {pattern!r}")


def all_of(kind: type[e.Message]) -> tuple[str, ...]:
    """Filters over all that is stored of a kind; of retries' timers, over the schedules that publish them too."""
    if kind in _ALL_OF:
        return _ALL_OF[kind]
    stored = kind.model_fields["type"].default
    if issubclass(kind, e.LockFact):
        return f"lock.*.{stored}", f"lock.*.*.{stored}"
    prefix = next(prefix for base, prefix in _FACTS.items() if issubclass(kind, base))
    return (every(f"{prefix}.{stored}"),)


_ALL_OF: Final[dict[type[e.Message], tuple[str, ...]]] = {
    e.CronTriggered: ("cron.triggered.*",),
    e.CronSkipped: ("cron.skipped.*",),
    e.CronMissed: ("cron.missed.*",),
    e.Report: ("report.>",),
    e.Trigger: ("trigger.>",),
    e.CancelRequest: ("cancel.>",),
    e.Enqueued: ("enqueue.>",),
    e.RetryTimer: ("delay.*.*.retry.>", "timer.*.*.retry.>"),
    e.LeaseTimer: ("delay.*.*.lease.>", "timer.*.*.lease.>"),
    e.ExpiryTimer: ("delay.*.*.expiry", "timer.*.*.expiry"),
    e.Envelope: ("mq.scheduled.>",),
    e.Completion: ("mq.scheduler.complete.>",),
}
_FACTS: Final[dict[type[e.Message], str]] = {
    e.ExecutionFact: "execution",
    e.LedgerFact: "ledger",
    e.DeadLetterFact: "dead-letter",
    e.LeadershipFact: "leadership",
}


def job_of(subject: str) -> str:
    """The job that a subject speaks of."""
    tokens = subject.split(".")
    if tokens[0] == "trigger":  # the public may write the dots of a name as they are
        return name(".".join(tokens[1:]))
    if tokens[0] == "cancel":
        return to_cancel(subject)[0]
    if tokens[0] == "mq":
        return completed(subject)[0] if tokens[1] == "scheduler" else name(".".join(tokens[2:]))
    return name(tokens[2 if tokens[0] == "cron" else 1])


def fact_of(subject: str) -> str:
    """What a subject of an execution says that happened."""
    return subject.split(".", 4)[3]


def entity_of(subject: str) -> str:
    """What must be handled in order: the execution, else the job."""
    kind, job, *rest = subject.split(".", 3)
    if kind == "mq":
        return subject.rpartition(".")[2]
    if kind == "cancel":
        return "{}.{}".format(*to_cancel(subject))
    return job if kind == "ledger" or not rest else f"{job}.{rest[0]}"


# --- reading ---------------------------------------------------------------------------------------------------------


class Unreadable(ValueError):
    """A stored message that no version known here can read; `sequence` is where it lies, if whoever read it knows."""

    sequence: int | None = None


def decode(subject: str, body: bytes) -> e.Message:
    """Read a body by what its subject says that it is.

    Raises:
        Unreadable: the subject names nothing known, or the body does not fit, or is of a newer version.
    """
    model = _model(subject)
    try:
        return model.model_validate_json(body or b"{}", context=STORED)
    except ValidationError as error:
        raise Unreadable(f"{subject}: {'; '.join(map(str, problems(error)))}") from error


def _model(subject: str) -> type[e.Message]:
    tokens = subject.split(".", 5)
    kind = tokens[0]
    decision = tokens[_DECISION[kind]] if kind in _DECISION and len(tokens) > _DECISION[kind] else ""
    if kind == "lock":
        decision = tokens[-1]
    try:
        return _MODELS[f"{kind}.{decision}" if decision else kind]
    except KeyError:
        raise Unreadable(f"{subject}: no such message is known here") from None


_DECISION: Final = {"ledger": 2, "leadership": 2, "execution": 3, "dead-letter": 3, "cron": 1, "lock": 2, "mq": 1} | {
    "timer": 3,
    "delay": 3,
}
_LONGER: Final = frozenset(
    {"dispatched", "started", "retry-scheduled", "advanced", "exhausted", "recovered", "released", "replayed"}
)
_MODELS: Final[dict[str, type[e.Message]]] = {
    **{
        f"ledger.{m.model_fields['type'].default}": m
        for m in (e.Defined, e.Paused, e.Resumed, e.Deleted, e.Due, e.Passed)
    },
    **{
        f"execution.{m.model_fields['type'].default}": m
        for m in (
            *(e.Planned, e.Admitted, e.Skipped, e.Dispatched, e.Started, e.RetryScheduled, e.Advanced, e.Exhausted),
            *(e.Recovered, e.Released, e.Completed, e.Failed, e.Cancelled),
        )
    },
    "lock.acquired": e.Acquired,
    "lock.queued": e.Queued,
    **{f"dead-letter.{m.model_fields['type'].default}": m for m in (e.DeadLettered, e.Refused, e.Replayed, e.Resolved)},
    "cron.triggered": e.CronTriggered,
    "cron.skipped": e.CronSkipped,
    "cron.missed": e.CronMissed,
    **{
        f"leadership.{m.model_fields['type'].default}": m
        for m in (e.LeadershipGained, e.LeadershipReleased, e.LeadershipLost)
    },
    "trigger": e.Trigger,
    "cancel": e.CancelRequest,
    "report": e.Report,
    "enqueue": e.Enqueued,
    **{
        f"{kind}.{what}": timer
        for kind in ("timer", "delay")
        for what, timer in (("retry", e.RetryTimer), ("lease", e.LeaseTimer), ("expiry", e.ExpiryTimer))
    },
    "mq.scheduled": e.Envelope,
    "mq.scheduler": e.Completion,
}


def _execution(fact: e.ExecutionFact) -> str:
    return f"execution.{token(fact.job)}.{fact.execution_id}"
