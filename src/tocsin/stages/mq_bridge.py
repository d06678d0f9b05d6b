"""MQ bridge: connects executors that know only hip-62's subjects.

It claims each task of a queue whose transport is `mq`, publishes it as a hip-62 envelope on `mq.scheduled.<job>`, at
least once, and turns each completion into a report. An execution that ended before the claim is not handed over, nor a task of a paused queue. The
attempt's time counts from the hand-over, or from an executor's message that it began. It vouches for completions: every publisher on their subjects is believed.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from hmac import compare_digest
from typing import Final

from .. import subjects
from ..domain import execution, ids, mq_answer
from ..domain.events import (
    Cancelled,
    Completion,
    Dispatched,
    Envelope,
    Failed,
    Message,
    MqCancel,
    MqCancelData,
    Recorded,
    Report,
    Started,
    StepProgress,
)
from ..domain.execution import TIMED_OUT, ClaimDenied, Execution, Phase, Status
from ..domain.execution.steps import RUNNING
from ..domain.mq_answer import (
    Answer,
    AnswerRefused,
)
from ..engine.kinds import QUEUE, execution_state
from ..engine.mq_tasks import Unneeded, UnneededTasks, envelope, unsupported
from ..engine.outside_workers import INTERVAL_S, OutsideName, OutsideWorkers
from ..engine.stage import Access, Stage, Subscription
from ..engine.step import DONE, Events, Send, States, Step, again, done, refuse, wait
from ..ports import Clock, Projections
from ..subjects import Bucket, Stream

HANDED_OVER: Final = 1
"""The delivery number of the claim with which the bridge hands a task over."""
BEGUN: Final = 2
"""The delivery number of the claim of the executor that says that it began."""
NOTICE_TTL_S: Final = 300.0
"""Seconds that a notice of an ended execution stays in the stream, for executors that read it before they begin."""
PAUSED_S: Final = 10.0
"""Delay after which a task of a paused queue is looked at again."""
UNNAMED_EXECUTOR: Final = "mq-executor"
_JOB: Final = re.compile(r"[a-z0-9][a-z0-9\-.]{0,254}")
_EXECUTION: Final = re.compile(r"[A-Za-z0-9-]{1,64}")


@dataclass(frozen=True, slots=True)
class Heard:
    """Signal: an executor answered for a task."""

    executor: str
    queue: str
    function: str


def heard(answer: Answer, state: Execution, step: str) -> tuple[Heard, ...]:
    """Return the signal of an answer; none if its executor names itself in no way."""
    if answer.executor is None:
        return ()
    return tuple(
        Heard(answer.executor, planned.queue, planned.function)
        for planned in state.request.plan.steps
        if planned.name == step
    )


class MqExecutors:
    """Shows the executors by the answers that were believed."""

    def __init__(self, projections: Projections, clock: Clock) -> None:
        self._workers = OutsideWorkers("mq", projections, clock)
        self._clock = clock

    def take(self, signal: object) -> None:
        """Note the executor of a signal."""
        if isinstance(signal, Heard):
            self._workers.hear(OutsideName("", signal.executor), (signal.queue,), (signal.function,))

    async def run(self) -> None:
        """Show the executors in a loop."""
        while True:
            await self._clock.sleep(INTERVAL_S)
            await self._workers.show()


class MqBridge:
    """Hands tasks to executors outside, and turns their completions into reports."""

    def __init__(
        self,
        key: bytes,
        queues: Collection[str],
        *,
        grace: float,
        unneeded: UnneededTasks,
        executors: MqExecutors,
        teams: Collection[str] = (),
    ) -> None:
        """Hand over the tasks of `queues`.

        `grace`: seconds after a timeout in which an answer counts. `teams`: the namespaces with executors of their own.
        """
        self._teams = frozenset(teams)
        self._key = key
        self._grace = grace
        self.unneeded = unneeded
        self.executors = executors
        self._queues = frozenset(queues)

    def on_task(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002 - no decision on the time
        """Claim a task for the executors outside, then hand it over."""
        task = recorded.message
        if not isinstance(task, Dispatched):
            return DONE
        ref = execution_state(task.job, task.execution_id)
        state = states(ref)
        if not _is_handed_over(state, task, recorded.sequence):
            if (held := _held_back(task, recorded.sequence, state, states)) is not None:
                return held
            claim = execution.claim(
                state,
                step=task.step,
                attempt=task.attempt,
                delivery=HANDED_OVER,
                task=recorded.sequence,
                worker=subjects.MQ_BRIDGE,
            )
            return DONE if isinstance(claim, ClaimDenied) else again(Events(ref, (claim,)))
        if (failure := unsupported(task.task, self._key)) is not None:
            subject = subjects.subject_of(failure)
            return done(Send(subject, failure, message_id=ids.report_id(failure.proof or "", subject)))
        secret = ids.keyed_digest(self._key, "mq-task", task.token, recorded.sequence)
        message_id = f"{task.execution_id}:{secret}"  # an executor must not be able to store another message under it
        # The recoverer has ended the attempt by then, unless an executor took the task meanwhile.
        ttl = task.timeout + self._grace
        handover = Send(subjects.mq_tasks(task.job, self._teams), envelope(task, recorded), message_id, ttl)
        return done(handover)

    def on_completion(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002 - no decision on the time
        """Publish a report for a completion, which may arrive repeatedly or too late."""
        completion = recorded.message
        if not isinstance(completion, Completion):
            return DONE
        try:
            answer = mq_answer.read(completion)
            job, execution_id = _addressee(recorded.subject, answer)
            self._require_own_subject(recorded.subject, job)
        except AnswerRefused as error:
            return refuse(str(error), code=error.code)
        ref = execution_state(job, execution_id)
        state = states(ref)
        try:
            target = self._meant(answer, state)
            if target is None:
                return DONE
            report = self._report(job, execution_id, answer, *target)
        except AnswerRefused as error:
            return refuse(str(error), code=error.code, job=job)
        if report is None:
            return self._begun(recorded, answer, states, *target)
        subject = subjects.subject_of(report)
        send = Send(subject, report, message_id=ids.report_id(report.proof or "", subject))
        return done(send, signals=heard(answer, state, report.step))

    def on_end(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002 - no decision on the time
        """Tell the executors outside that an execution is over, and remove its tasks."""
        end = recorded.message
        if not isinstance(end, Cancelled | Failed):
            return DONE
        state = states(execution_state(end.job, end.execution_id))
        if state.requested is None:
            return DONE
        steps = tuple(
            step
            for step, current in state.steps.items()
            if current.phase in RUNNING and step != _answered_step(end) and self._is_outside(state, step)
        )
        if not steps:
            return DONE
        reason = end.reason
        data = MqCancelData(
            job_name=end.job, execution_id=end.execution_id, steps=steps, status=end.type, reason=reason
        )
        notice = MqCancel(id=f"cancel_{end.execution_id}", timestamp=recorded.time, data=data)
        subject = subjects.mq_cancel(end.job, end.execution_id)
        message_id = ids.keyed_digest(self._key, "mq-cancel", notice.id)
        return done(Send(subject, notice, message_id, NOTICE_TTL_S), signals=(Unneeded(end.job, end.execution_id),))

    def _require_own_subject(self, subject: str, job: str) -> None:
        """Refuse an answer for a team's job under a subject of other executors."""
        team = subjects.mq_team(job, self._teams)
        if team is not None and not subject.startswith(f"mq.scheduler.complete.{team}."):
            raise AnswerRefused(
                f"only executors of the namespace {team!r} answer for its jobs; answer on mq.scheduler.complete.<job>.<execution_id>",
                "mq-answer-misaddressed",
            )

    def _meant(self, answer: Answer, state: Execution) -> tuple[str, int] | None:
        """Return the step and the attempt that an answer means.

        None: the answer is late, or the step belongs to a queue of another transport.
        """
        if state.status is Status.UNKNOWN:
            raise AnswerRefused(
                "no open execution of this job has this id; the answer may be very late", "mq-answer-misaddressed"
            )
        if answer.step is not None and answer.step not in state.steps:
            raise AnswerRefused(f"the execution has no step {answer.step!r}", "mq-answer-misaddressed")
        candidates = self._candidates(answer, state)
        if len(candidates) > 1:
            names = ", ".join(step for step, _ in candidates)
            raise AnswerRefused(f"the answer names no step, and several are in flight: {names}", "mq-answer-ambiguous")
        return candidates[0] if candidates else None

    def _report(self, job: str, execution_id: str, answer: Answer, step: str, attempt: int) -> Report | None:
        """Return the report of an attempt with an answer's outcome; None: it only began."""
        token = ids.report_token(self._key, execution_id, step, attempt)
        if answer.token is not None and not compare_digest(answer.token.encode(), token.encode()):
            raise AnswerRefused(f"the token is not that of step {step!r}, attempt {attempt}", "mq-token-wrong")
        if answer.outcome == "started":
            return None
        return Report(
            job=job,
            execution_id=execution_id,
            outcome=answer.outcome,
            step=step,
            attempt=attempt,
            token=token,
            proof=ids.claim_proof(self._key, execution_id, step, attempt, None),
            result=answer.result,
            error=answer.error,
            worker=answer.executor,
        )

    def _begun(self, recorded: Recorded[Message], answer: Answer, states: States, step: str, attempt: int) -> Step:
        """Store that an executor began, from which the attempt's time counts, and show its progress."""
        job, execution_id = _addressee(recorded.subject, answer)
        ref = execution_state(job, execution_id)
        if claim := _started(states(ref), answer, step, attempt):
            return again(Events(ref, (claim,)))
        signals = heard(answer, states(ref), step)
        if answer.progress is None:
            return done(signals=signals)
        progress = StepProgress(
            job=job,
            execution_id=execution_id,
            step=step,
            attempt=attempt,
            time=recorded.time,
            fraction=answer.progress,
            message=answer.message,
        )
        message_id = ids.keyed_digest(self._key, "mq-progress", execution_id, recorded.sequence)
        subject = subjects.output_of(progress, ids.report_token(self._key, execution_id, step, attempt))
        return done(Send(subject, progress, message_id), signals=signals)

    def _candidates(self, answer: Answer, state: Execution) -> list[tuple[str, int]]:
        """Return the attempts in flight to which a completion may refer.

        An attempt is claimed before it is handed over. An answer that names no attempt is not one to an attempt that no
        executor can have yet.
        """
        return [
            (step, attempt)
            for step, attempt in execution.running_steps(state)
            if state.steps[step].phase is Phase.STARTED
            and answer.step in {None, step}
            and answer.attempt in {None, attempt}
            and self._is_outside(state, step)
        ]

    def _is_outside(self, state: Execution, step: str) -> bool:
        """Return whether the task of a step was handed over."""
        return any(candidate.name == step and candidate.queue in self._queues for candidate in state.request.plan.steps)


def _held_back(task: Dispatched, sequence: int, state: Execution, states: States) -> Step | None:
    """Return the step if a task may not be handed over, or is purged."""
    queue = states(QUEUE(subjects.queue(task.queue)))
    if queue.purge is not None and (ends := execution.purge(state, queue.purge, step=task.step, task=sequence)):
        return done(Events(execution_state(task.job, task.execution_id), tuple(ends)))
    # No executor outside owns a resource. The registry refuses such jobs, but settings may change later.
    is_held = queue.is_paused or task.resource is not None
    return wait(PAUSED_S) if is_held else None


def _answered_step(end: Cancelled | Failed) -> str | None:
    """Return the step whose executor's answer ended the execution."""
    if isinstance(end, Cancelled) or (end.error is not None and end.error.type == TIMED_OUT):
        return None
    return end.step


def _is_handed_over(state: Execution, task: Dispatched, sequence: int) -> bool:
    """Return whether a task is claimed for the executors outside, and has no outcome."""
    step = state.steps.get(task.step)
    if state.status is not Status.ADMITTED or step is None or step.phase is not Phase.STARTED:
        return False
    return (step.attempt, step.task) == (task.attempt, sequence)


def _started(state: Execution, answer: Answer, step: str, attempt: int) -> Started | None:
    """Return the claim of an executor that began; None: another began before.

    The time limit of the attempt counts from this claim, instead of from the hand-over.
    """
    current = state.steps[step]
    if current.phase is not Phase.STARTED or current.delivery != HANDED_OVER:
        return None
    claim = execution.claim(
        state,
        step=step,
        attempt=attempt,
        delivery=BEGUN,
        task=current.task,
        worker=answer.executor or UNNAMED_EXECUTOR,
    )
    return None if isinstance(claim, ClaimDenied) else claim


def _addressee(subject: str, answer: Answer) -> tuple[str, str]:
    """Return the job and the execution that an answer is about.

    A subject of two or more tokens names both, and the body may not contradict it. A subject of one token, which the
    specification allows too, names one of them or neither, and the body names the rest. So does a subject that is the
    name of the job in the body, which may have dots.

    Raises:
        AnswerRefused: the answer names no execution, or names two.
    """
    job, execution_id = subjects.parse_completion(subject)
    if answer.execution_id and answer.job == f"{job}.{execution_id}":
        job, execution_id = answer.job, answer.execution_id
    elif job:
        if answer.job not in {None, job} or answer.execution_id not in {None, execution_id}:
            raise AnswerRefused(
                f"the subject is {subject}, but the body names another execution", "mq-answer-contradictory"
            )
    else:
        single_token = execution_id
        job = answer.job or (single_token if answer.execution_id not in {None, single_token} else "")
        execution_id = answer.execution_id or (single_token if single_token != job else "")
    if not _JOB.fullmatch(job) or not _EXECUTION.fullmatch(execution_id):
        raise AnswerRefused(
            f"{subject} and the body name no execution; answer on mq.scheduler.complete.<job>.<execution_id>, "
            "or name `job_name` and `execution_id` in the body",
            "mq-answer-misaddressed",
        )
    return job, execution_id


MQ_BRIDGE: Final = Stage(
    name="mq_bridge",
    purpose="connects executors that speak hip-62's MQ subjects",
    consumes="`dispatched` of `mq` queues, completions, `cancelled`, `failed`",
    decides="`started`, hip-62 envelopes; reports; notices of cancellation; progress; `cancelled` after a purge",
    access=Access(
        appends=(Started, Cancelled, Envelope, MqCancel, Report, StepProgress),
        reads=(Stream.MQ,),
        removes=(Stream.MQ,),
        writes=((Bucket.AGENTS, subjects.outside_key("mq", "*")),),
    ),
    start=lambda context: MqBridge(
        context.report_key,
        context.settings.bridged_queues,
        grace=context.settings.recovery.grace,
        unneeded=UnneededTasks(context.log, context.clock, context.settings.mq_teams),
        executors=MqExecutors(context.projections, context.clock),
        teams=context.settings.mq_teams,
    ),
    subscriptions=(
        Subscription(
            subjects.MQ_BRIDGE,
            Stream.LOG,
            lambda settings: tuple(tasks for queue in settings.bridged_queues for tasks in subjects.tasks(queue)),
            decide=MqBridge.on_task,
        ),
        Subscription(
            subjects.MQ_BRIDGE_COMPLETIONS,
            Stream.MQ,
            (subjects.filter_for("mq.scheduler.complete"),),
            decide=MqBridge.on_completion,
            on_signal=lambda bridge, signal: bridge.executors.take(signal),
        ),
        Subscription(
            subjects.MQ_BRIDGE_ENDS,
            Stream.LOG,
            (subjects.filter_for("execution.cancelled"), subjects.filter_for("execution.failed")),
            decide=MqBridge.on_end,
            on_signal=lambda bridge, signal: bridge.unneeded.take(signal),
        ),
    ),
    loops=(lambda bridge: bridge.unneeded.run(), lambda bridge: bridge.executors.run()),
    is_installed=lambda settings: bool(settings.bridged_queues),
    needs="a queue in `queues` with `transport: mq`",
)
