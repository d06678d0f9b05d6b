"""Show an execution as a job of the Open Job Spec (ojs-core §6).

The eight states of a job are derived from the fold.

A job keeps its id when its dead letter is retried, although the retry is a new execution. The id of a step of a DAG or a workflow is
`<execution>:<step>`. A step of a workflow is a job of its own, and a step of a DAG is not.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

from .... import subjects
from ....domain import dead_letter, events, execution
from ....domain.definition import size_of
from ....domain.events import JobState, Message, Plan, PlannedStep, Recorded, Workflow, unfold
from ....domain.execution import TIMED_OUT, Execution, Phase, Status, Step
from ....domain.text import utc_text
from ....domain.uniqueness import job_state
from ....ports import EventLog
from ....services.operations import lookup
from ....services.operations.errors import NotFound
from ....services.operations.lookup import ExecutionMatch
from .envelope import META_KEY

Facts: TypeAlias = Sequence[Recorded[Message]]
Json: TypeAlias = dict[str, Any]

MAX_REPLAYS: Final = 100
"""Executions of one job that are read to find the first or the newest."""
_TYPES: Final = {TIMED_OUT: "timeout"}
"""Error types that have another name in ojs-core."""


def job(facts: Facts, *, job_id: str | None = None, step: str | None = None, state: Execution | None = None) -> Json:
    """Return an execution or a step as a job; `job_id`: the id of the client."""
    if state is None:
        state = execution.fold(facts)
    requested = next(fact for fact in unfold(facts) if isinstance(fact.message, events.Requested))
    request = state.request
    plan = request.plan
    planned = next((candidate for candidate in plan.steps if candidate.name == step), plan.steps[0])
    meta = {**request.meta, **(planned.meta or {})}
    about = about_of(meta)
    tree = workflow_of(plan)
    tags = list(plan.tags) if tree is None else about.get("tags")
    current = _current(state, planned.name)
    shown: Json = {
        **(extra if isinstance(extra := about.get("extra"), dict) else {}),
        "specversion": "1.0",
        "id": job_id or about.get("id") or request.execution_id,
        "type": planned.function,
        "queue": planned.queue,
        "args": list(plan.args if planned.args is None else planned.args),
        "meta": {name: value for name, value in meta.items() if name != META_KEY},
        "priority": planned.priority or about.get("priority", 0),  # older plans have it in the metadata only
        "state": _state_of(state, current),
        "attempt": attempts_of(current),
        "max_attempts": planned.retry.max_attempts,
        "timeout_ms": round(planned.timeout * 1000),
        "created_at": instant(requested.time),
        "enqueued_at": instant(requested.time),
        **({"tags": tags} if tags else {}),
        **({"workflow_id": request.execution_id} if tree is not None else {}),
        **({"options": about["options"]} if about.get("options") else {}),
        **({"expires_at": about["expires_at"]} if about.get("expires_at") else {}),
        **({"scheduled_at": instant(plan.start_at)} if plan.start_at else {}),
        **_times(facts, state, planned.name),
        **_failures(facts, state, planned),
    }
    return {**shown, **_result_metadata(shown)}


def progress(facts: Facts, state: Execution, step: str) -> Json:
    """Return the fields of `job` on a step's progress: `state`, `attempt`, and `completed_at` or None."""
    current = _current(state, step)
    ends = events.Completed | events.Failed | events.Advanced | events.Exhausted
    times = _times([fact for fact in facts if isinstance(fact.message, ends)], state, step)
    return {
        "state": _state_of(state, current),
        "attempt": attempts_of(current),
        "completed_at": times.get("completed_at"),
    }


def state_of(state: Execution) -> JobState:
    """Return the state of the job that an execution is, as `job` shows it."""
    return _state_of(state, _current(state, state.request.plan.steps[0].name))


def about_of(meta: Json) -> Json:
    """Return the fields of a job that only this protocol knows."""
    about = meta.get(META_KEY)
    return about if isinstance(about, dict) else {}


def attempts_of(step: Step) -> int:
    return step.attempt - 1 if step.phase in {Phase.DISPATCHED, Phase.LOST} and step.attempt else step.attempt


def _current(state: Execution, name: str) -> Step:
    """Return the step that represents the execution: a running step, or else the named step."""
    if is_workflow(state):
        return state.steps[name]
    for phase in (Phase.STARTED, Phase.RETRYING, Phase.DISPATCHED):
        if len(state.steps) > 1 and (step := next((s for s in state.steps.values() if s.phase is phase), None)):
            return step
    return state.steps[name]


def is_workflow(state: Execution) -> bool:
    """Return whether each step of an execution is a job of its own."""
    return state.requested is not None and workflow_of(state.requested.plan) is not None


def workflow_of(plan: Plan) -> Workflow | None:
    """Return the tree of a workflow; None: it is a job or a graph."""
    return plan.workflow if plan.definition == 0 else None


def _state_of(state: Execution, step: Step) -> JobState:
    if not is_workflow(state):
        return job_state(state, step)
    match step.phase:
        case Phase.COMPLETED:
            return "completed"
        case Phase.EXHAUSTED:
            return "discarded"
        case Phase.WAITING if not state.is_over:
            return "pending"
        case _:
            return "cancelled" if state.is_over else job_state(state, step)


def current_step(facts: Facts) -> str:
    """Return the name of the step that represents an execution."""
    state = execution.fold(facts)
    current = _current(state, state.request.plan.steps[0].name)
    return next(name for name, step in state.steps.items() if step == current)


def _times(facts: Facts, state: Execution, step: str) -> Json:
    shown: Json = {}
    end = _end_of_job if is_workflow(state) else _end_of_execution
    for fact in facts:
        match fact.message:
            case events.Started(step=name, worker=worker) if name == step:
                shown["started_at"] = instant(fact.time)
                if worker:
                    shown["worker_id"] = worker
            case events.Dispatched(step=name, attempt=attempt) if name == step and attempt == 1:
                shown["enqueued_at"] = instant(fact.time)
            case events.Advanced() | events.Exhausted() | events.Completed() | events.Failed() | events.Cancelled():
                shown |= end(fact, state, step)
            case _:
                pass
    if state.status is Status.ADMITTED and state.steps[step].phase in {Phase.DISPATCHED, Phase.LOST, Phase.RETRYING}:
        shown.pop("started_at", None)
        shown.pop("worker_id", None)
    return shown


def _end_of_execution(fact: Recorded[Message], _state: Execution, _step: str) -> Json:
    at = instant(fact.time)
    match fact.message:
        case events.Completed(result=result):
            return {"completed_at": at, "result": result}
        case events.Cancelled():
            return {"cancelled_at": at}
        case events.Failed(reason=reason):
            return {"discarded_at": at} if reason == "expired" else {"discarded_at": at, "completed_at": at}
        case _:
            return {}


def _end_of_job(fact: Recorded[Message], state: Execution, step: str) -> Json:
    """Return the fields on an event that ends a job, perhaps after its workflow."""
    at = instant(fact.time)
    match fact.message:
        case events.Advanced(step=name, result=result) | events.Completed(step=name, result=result) if name == step:
            return {"completed_at": at, "result": result}
        case events.Failed(step=name, step_completed=True, result=result) if name == step:
            return {"completed_at": at, "result": result}
        case events.Exhausted(step=name) | events.Failed(step=name) if name == step:
            return {"completed_at": at, "discarded_at": at}
        case events.Completed() | events.Failed() | events.Cancelled() if not state.steps[step].phase.is_end:
            return {"cancelled_at": at}
        case _:
            return {}


def _failures(facts: Facts, state: Execution, planned: PlannedStep) -> Json:
    shown: Json = {}
    errors = list(_errors(facts, planned.name, alone=not is_workflow(state)))
    if errors:
        shown["errors"] = errors
        if state.status is not Status.COMPLETED or state.steps[planned.name].phase is Phase.EXHAUSTED:
            shown["error"] = errors[-1]
    delays = [
        f.message for f in facts if isinstance(f.message, events.RetryScheduled) and f.message.step == planned.name
    ]
    if delays:
        newest = max(delays, key=lambda retry: retry.attempt)
        shown["retry_delay_ms"] = round(newest.delay * 1000)
        if state.steps[planned.name].phase is Phase.RETRYING and not state.is_over:
            shown["next_attempt_at"] = instant(newest.next_attempt_at)
    return shown


def _result_metadata(shown: Json) -> Json:
    """Return when the outcome of a job was stored, and its size (ojs-results §6.2).

    It has no expiry: an event leaves the log only for the archive, which keeps it.
    """
    if "result" in shown:
        at, size = shown["completed_at"], {"result_size_bytes": size_of(shown["result"])}
    elif "error" in shown and "discarded_at" in shown:
        at, size = shown["discarded_at"], {}
    else:
        return {}
    return {"result_stored_at": at, "result_expires_at": None, **size}


def _errors(facts: Facts, step: str, *, alone: bool) -> Iterable[Json]:
    """Yield the errors of a step; if it is `alone`, also that of the execution."""
    for fact in facts:
        match fact.message:
            case (events.RetryScheduled() | events.Exhausted()) as failed if failed.step == step:
                yield _error(failed.error, failed.attempt, fact.time)
            case events.Failed(step=name, error=failure, attempt=last, step_completed=done) if failure is not None:
                if not alone and (name != step or done):
                    continue
                yield _error(failure, last or 0, fact.time)
            case _:
                pass


def _error(failure: events.Failure, attempt: int, at: datetime) -> Json:
    return {
        "type": _TYPES.get(failure.type, failure.type),
        "code": failure.code or _TYPES.get(failure.type, failure.type),
        "message": failure.message,
        "attempt": attempt,
        "occurred_at": instant(at),
        "retryable": failure.retryable,
        **({"details": failure.details} if failure.details else {}),
    }


def instant(at: datetime) -> str:
    """Write an instant as the specification does: RFC 3339, in UTC, with milliseconds."""
    return utc_text(at, "milliseconds")


def unknown(job_id: str) -> NotFound:
    return NotFound(f"no execution has the id {job_id.partition(':')[0]!r}")


async def newest_replay(log: EventLog, job: str, execution_id: str) -> ExecutionMatch | None:
    """Return the newest execution that retried a dead letter.

    A retry that has not begun yet did not run, nor did one that was skipped, such as beyond a daily quota.
    """
    state = dead_letter.fold(await log.load(subjects.dead_letter(job, execution_id)))
    for replay in state.replays[: -MAX_REPLAYS - 1 : -1]:
        facts = tuple(await log.load(subjects.execution(job, replay.execution_id)))
        if facts and execution.fold(facts).status is not Status.SKIPPED:
            return ExecutionMatch(job, replay.execution_id, facts)
    return None


async def find(
    log: EventLog, job_id: str, *, sees: Callable[[ExecutionMatch], Awaitable[bool]] | None = None
) -> ExecutionMatch:
    """Return the newest execution of a job.

    `sees`: whether the caller may know of an execution. Others are answered like an id that no execution has.

    Raises:
        NotFound: no execution has this id, or it is a skipped occurrence, for which no job was enqueued (ojs-cron §9.2).
        NotAnId: the text cannot be an id.
    """
    record = await lookup.find(log, job_id.partition(":")[0])
    if sees is not None and not await sees(record):
        raise unknown(job_id)
    while (status := execution.fold(record.facts).status) is Status.FAILED:
        newest = await newest_replay(log, record.job, record.execution_id)
        if newest is None:
            break
        record = newest
    folded = execution.fold(record.facts)
    if is_workflow(folded) and job_id.partition(":")[2] not in folded.steps:
        raise NotFound(f"no job has the id {job_id!r}: it is the id of a workflow, and its jobs have ids of their own")
    if status is Status.SKIPPED:
        raise NotFound(f"no job has the id {job_id!r}: it was skipped, so no job was enqueued")
    if status is Status.FANNED_OUT:
        raise NotFound(
            f"no job has the id {job_id!r}: it stands for executions on several shards, each of which is a job"
        )
    return record
