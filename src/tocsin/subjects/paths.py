"""The subjects of messages, and the scopes that guards cover."""

import re
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from ..domain import events as e
from ..domain.ids import seal
from ..domain.lock import waits_before_lock
from .names import DEFAULT_QUEUE, ENQUEUED, JOB_EXECUTORS, NO_CLAIM, REPLAYS, TRIGGERS, dotted, token


def subject_of(message: e.Message) -> str:
    """Return the subject of an event, an input or a public event.

    An event's subject is its scope, its type, and the rest that `TAILS` has.
    """
    return subject_and_scope(message)[0]


def subject_and_scope(message: e.Message) -> tuple[str, str]:
    """Return the subject of a message, and the scope that guards it."""
    fact: Any = message
    make_scope, make_subject, tail = _ways(fact.__class__)
    if make_scope is None:
        return (subject := make_subject(fact)), subject
    scope = make_scope(fact)
    if make_subject is not None:
        subject = make_subject(fact)
    else:
        subject = f"{scope[:-1]}{fact.type}{'' if tail is None else tail(fact)}"
    return subject, scope


@cache
def _ways(kind: Any) -> tuple[Any, Any, Any]:  # noqa: ANN401 - a class of messages, and functions of it
    """Return functions for the scope, the subject and its rest."""
    scope, subject = _scope(kind), _SUBJECTS.get(kind)
    if scope is None and subject is None:
        raise TypeError(f"{kind.__name__} has no subject of its own")
    return scope, subject, TAILS.get(kind)


def _dispatched(task: e.Dispatched) -> str:
    queue = "" if task.queue == DEFAULT_QUEUE else f".{token(task.queue)}"
    decision = "dispatched" if task.admits is None else "admitted"
    return f"execution.{token(task.job)}.{task.execution_id}.{decision}.{task.step}.{task.attempt}{queue}"


def _replayed(fact: e.Replayed) -> str:
    return f".{fact.number}" if fact.execution_id is None else f".{fact.number}.{fact.execution_id}"


def _public_event(fact: e.CronTriggered | e.CronSkipped | e.CronMissed) -> str:
    return f"{fact.event}.{token(fact.data.cron_name)}"


def _answer(fact: e.CronAnswer) -> str:
    return answer(fact.data.cron_name, fact.data.trigger_id)


def _report(report: e.Report) -> str:
    job = token(report.job)
    attempted = f"{report.step}.{report.attempt}.{seal(report.proof or '', job)}.{report.claim or NO_CLAIM}"
    return f"report.{job}.{report.execution_id}.{report.outcome}.{attempted}"


_SUBJECTS: Final[Mapping[type, Callable[[Any], str]]] = {
    e.Dispatched: _dispatched,
    e.ChangeRequest: lambda request: f"change.{request.about}.{request.id}",
    e.Report: _report,
    e.Enqueued: lambda request: f"enqueue.{token(request.definition.name)}.{request.execution_id}",
    **dict.fromkeys((e.CronTriggered, e.CronSkipped, e.CronMissed), _public_event),
    e.CronAnswer: _answer,
    e.EventIgnored: lambda fact: ignored_events(fact.job, fact.trigger_id),
}
TAILS: Final[Mapping[type, Callable[[Any], str]]] = {
    e.Started: lambda fact: f".{fact.step}.{fact.attempt}.{fact.delivery}",
    e.RetryScheduled: lambda fact: f".{fact.step}.{fact.attempt}",
    e.Released: lambda fact: f".{fact.step}.{fact.attempt}.{fact.task}",
    e.Recovered: lambda fact: f".{fact.recovery}",
    **dict.fromkeys((e.Advanced, e.Exhausted, e.LeaseExtended), lambda fact: f".{fact.step}"),
    e.Proposed: lambda fact: f".{fact.attempt}",
    e.Acknowledged: lambda fact: f".{fact.attempt}.{fact.name}.{fact.agent_id}",
    e.Replayed: _replayed,
    e.NotificationAttemptFailed: lambda fact: f".{fact.attempt}",
    # Another keeper decides before the lock keeper: the execution waits for other jobs, or for agents.
    e.Planned: lambda fact: ".dependent" if waits_before_lock(fact) else "",
    # Only if it held a lock, other executions may wait for it.
    e.Completed: lambda end: "" if end.fence is None else ".locked",
}
"""The rest of the subject of an event after its type."""


def definition(job: str) -> str:
    return f"ledger.{token(job)}.defined"


def ledger_subjects(job: str, *facts: str) -> tuple[str, ...]:
    """Return the subjects of event types of a job's ledger, e.g. `due`."""
    return tuple(f"ledger.{token(job)}.{fact}" for fact in facts)


def acquisitions(job: str) -> str:
    return lock(job).removesuffix("*") + "acquired"


def admissions(job: str, execution_id: str) -> tuple[str, ...]:
    """Return filters over the admission or skip of an execution."""
    prefix = f"execution.{token(job)}.{execution_id}"
    return f"{prefix}.admitted", f"{prefix}.admitted.>", f"{prefix}.skipped"


def trigger(job: str, execution_id: str | None = None) -> str:
    """Return the subject that requests a run of a job.

    `execution_id`: the id of the execution, if the request chooses it. A reader finds the request by it until the planner has decided.
    """
    return f"trigger.{token(job)}" if execution_id is None else f"trigger.{token(job)}.{execution_id}"


def requests_of(job: str, execution_id: str) -> dict[str, str]:
    """Return the subjects of requests that choose the id of their execution.

    They are triggers, enqueued jobs and replays, by the planner's durable. `job`: its name, or `*` for any.
    """
    of = token(job)
    return {
        TRIGGERS: f"trigger.{of}.{execution_id}",
        ENQUEUED: f"enqueue.{of}.{execution_id}",
        REPLAYS: f"dead-letter.{of}.*.replayed.*.{execution_id}",
    }


def ignored_events(job: str, trigger_id: str = "*") -> str:
    """Return the subject of events that started nothing.

    They belong to one trigger, or to all triggers of a job.
    """
    return f"event.{token(job)}.{trigger_id}"


def cancel(job: str, execution_id: str) -> str:
    """Return the subject that requests the cancellation of an execution."""
    return f"cancel.{token(job)}.{execution_id}"


def lines(job: str, execution_id: str, step: str, attempt: int, *, of_token: str) -> str:
    """Return the subject of the lines of an attempt; `of_token`: the token of its task."""
    return _sealed("output", job, execution_id, step, attempt, of_token)


def progress(job: str, execution_id: str, step: str, attempt: int, *, of_token: str) -> str:
    """Return the subject of the newest progress of an attempt."""
    return _sealed("progress", job, execution_id, step, attempt, of_token)


def heartbeat(job: str, execution_id: str, step: str, attempt: int, *, of_token: str) -> str:
    """Return the subject of the details that the handler of an attempt sent last."""
    return _sealed("heartbeat", job, execution_id, step, attempt, of_token)


def output_of(message: e.OutputMessage, of_token: str) -> str:
    """Return the subject of output; `of_token`: the token of the task."""
    return _sealed(_OUTPUT[type(message)], message.job, message.execution_id, message.step, message.attempt, of_token)


def all_lines(job: str, execution_id: str) -> str:
    """Return a filter over all lines of an execution, also lines with a wrong seal."""
    return f"output.{token(job)}.{execution_id}.>"


def _sealed(kind: str, job: str, execution_id: str, step: str, attempt: int, of_token: str) -> str:
    return f"{kind}.{token(job)}.{execution_id}.{step}.{attempt}.{seal(of_token)}"


_OUTPUT: Final[Mapping[type, str]] = {
    e.OutputLine: "output",
    e.StepProgress: "progress",
    e.HeartbeatDetails: "heartbeat",
}


def public_event(event: str, job: str) -> str:
    """Return the subject of a job's public event: `triggered`, `skipped` or `missed`."""
    return f"cron.{event}.{token(job)}"


def answer(job: str, trigger_id: str) -> str:
    """Return the subject of the answer to a trigger (`ids.answer_id`)."""
    return f"cron.answer.{token(job)}.{trigger_id}"


def answers(job: str) -> str:
    """Return a filter over the answers to all triggers of a job."""
    return f"cron.answer.{token(job)}.>"


def mq_team(job: str, teams: Collection[str]) -> str | None:
    """Return the namespace whose executors alone take and answer a job's tasks.

    None: all other executors do. `teams`: the namespaces with executors of their own. A job with the name of a namespace is
    its job too, because its completions have the same subjects.
    """
    namespace = dotted(job).partition(".")[0]
    return namespace if namespace in teams else None


def mq_tasks(job: str, teams: Collection[str] = ()) -> str:
    """Return the subject from which MQ executors take a job's tasks (hip-62)."""
    return f"mq.{'team' if mq_team(job, teams) else 'scheduled'}.{dotted(job)}"


def mq_executors(team: str) -> str:
    return f"{JOB_EXECUTORS}-{team}"


def mq_cancel(job: str, execution_id: str) -> str:
    """Return the subject on which MQ executors hear that an execution needs no more work."""
    return f"mq.scheduler.cancel.{dotted(job)}.{execution_id}"


def ledger(job: str) -> str:
    return f"ledger.{token(job)}.>"


def execution(job: str, execution_id: str) -> str:
    return f"execution.{token(job)}.{execution_id}.>"


def lock(job: str, shard: str | None = None) -> str:
    """Return the scope of a job's lock, or of one of its shards."""
    return f"lock.{token(job)}.*" if shard is None else f"lock.{token(job)}.{token(shard)}.*"


def is_ownership(subject: str) -> bool:
    """Return whether a subject belongs to an event about a resource."""
    return subject.startswith("ownership.")


def dead_letter(job: str, id: str) -> str:  # noqa: A002 - the field is called so
    return f"dead-letter.{token(job)}.{id}.>"


def agent(name: str, agent_id: str) -> str:
    """Return the scope of an agent; the id `all` means its name."""
    return f"agent.{name}.{agent_id}.>"


def queue(name: str) -> str:
    """Return the scope of operators' decisions about a queue."""
    return f"queue.{token(name)}.>"


def ownership(resource: str) -> str:
    return f"ownership.{resource}.>"


def shard_map() -> str:
    return "shards.map.>"


def policy() -> str:
    return "policy.scheduler.>"


def namespaces() -> str:
    return "namespaces.map.>"


def silences() -> str:
    return "silences.notifications.>"


def repair(stream: str, sequence: int) -> str:
    """Return the scope of operators' decisions about a foreign message."""
    return f"repair.{stream}.{sequence}.>"


def voided(stream: str, sequence: int) -> str:
    """Return the subject of an operator's decision about a message that no reader decides by."""
    return f"repair.{stream}.{sequence}.voided"


def unique_key(job: str, key: str) -> str:
    """Return the scope of a unique key of an unregistered job."""
    return f"unique.{token(job)}.{key}.>"


def notifications() -> str:
    return "notification.>"


def notification(job: str, id: str) -> str:  # noqa: A002 - the field is called so
    return f"notification.{token(job)}.{id}.>"


def outcome(job: str) -> str:
    return notification(job, e.OUTCOME_ID)


class ReportSubject(NamedTuple):
    """The content of a report's subject."""

    scope: str
    job: str
    execution_id: str
    outcome: str
    step: str
    attempt: int
    seal: str
    """The proof that its publisher has the claim (`ids.seal`)."""
    claim: int | None
    """The sequence of the claim; None: a stage reports on the current one."""


def parse_report(subject: str) -> ReportSubject | None:
    """Return the content of a report's subject; None: no report has this subject.

    A worker may publish there.
    """
    tokens = subject.split(".")
    if len(tokens) != _TOKENS_OF_A_REPORT:
        return None
    _, job, execution_id, outcome, step, attempt, its_seal, claim = tokens
    if _NUMBER.fullmatch(attempt) is None or (claim != NO_CLAIM and _NUMBER.fullmatch(claim) is None):
        return None
    if outcome not in _OUTCOMES:
        return None
    claimed = None if claim == NO_CLAIM else int(claim)
    scope = f"execution.{job}.{execution_id}.>"
    return ReportSubject(scope, job, execution_id, outcome, step, int(attempt), its_seal, claimed)


_TOKENS_OF_A_REPORT: Final = 8
_OUTCOMES: Final = frozenset({"completed", "failed"})
_NUMBER: Final = re.compile("[0-9]{1,18}")


def scope_of(message: e.Message) -> str:
    """Return the scope that guards an event.

    A public event is guarded by its own subject.
    """
    kind: Any = message.__class__
    make_scope, _, _ = _ways(kind)
    return subject_of(message) if make_scope is None else make_scope(message)


@cache
def _scope(kind: type[e.Message]) -> Callable[[Any], str] | None:
    return next((make for base, (_, make) in KINDS.items() if issubclass(kind, base)), None)


KINDS: Final[Mapping[type[e.Message], tuple[str, Callable[[Any], str]]]] = {
    e.ExecutionFact: ("execution", lambda fact: execution(fact.job, fact.execution_id)),
    e.LedgerFact: ("ledger", lambda fact: ledger(fact.job)),
    e.LockFact: ("lock", lambda fact: lock(fact.job, fact.shard)),
    e.DeadLetterFact: ("dead-letter", lambda fact: dead_letter(fact.job, fact.id)),
    e.AgentFact: ("agent", lambda fact: agent(fact.name, fact.agent_id)),
    e.QueueFact: ("queue", lambda fact: queue(fact.queue)),
    e.OwnershipFact: ("ownership", lambda fact: ownership(fact.resource)),
    e.ShardsDefined: ("shards", lambda _: shard_map()),
    e.PolicyDefined: ("policy", lambda _: policy()),
    e.NamespacesDefined: ("namespaces", lambda _: namespaces()),
    e.SilencesDefined: ("silences", lambda _: silences()),
    e.RepairFact: ("repair", lambda fact: repair(fact.stream, fact.sequence)),
    e.NotificationFact: ("notification", lambda fact: notification(fact.job, fact.id)),
    e.UniqueFact: ("unique", lambda fact: unique_key(fact.job, fact.key)),
}
"""The first token of the subjects of events, and their scope, by the base class of the events."""


def execution_scope(subject: str) -> str:
    """Return the scope around the subject of an execution's event."""
    return ".".join((*subject.split(".", 3)[:3], ">"))
