"""Lease keeper: ends leases that run out, and executions that expire.

It stores a report of failure, on which the retrier decides after all reports that were stored before, as on any other.

Implements the visibility timeout of ojs-worker-protocol, the execution timeout of ojs-timeouts, `expires_at` of ojs-core.
"""

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Final

from .. import subjects
from ..domain import execution
from ..domain.events import Death, Failure, Report, Started
from ..domain.execution import Execution, Phase
from ..domain.task_fetch import lease_span
from ..engine.kinds import EXECUTION, FACTS
from ..engine.report_lists import report_of_stage
from ..engine.stage import Access, Deadline, DeadlineRule, Stage
from ..engine.step import DONE, States, Step, done


class LeaseKeeper:
    """Decides at the ends of leases and at times of expiry."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def deadlines(self, state: Execution) -> Iterator[Deadline]:
        """Yield when an execution expires, and when the leases of its steps end.

        The key of a lease is its step.
        """
        if state.requested is None:
            return
        if state.requested.plan.expires_at is not None:
            yield Deadline(state.requested.plan.expires_at)
        for name, step in state.steps.items():
            if step.leased_until is not None and step.claimed_at is not None and step.phase is Phase.STARTED:
                limit = lease_span(execution.planned_step(state, name).timeout)
                yield Deadline(min(step.leased_until, step.claimed_at + limit), name)

    def on_deadline(self, scope: str, deadline: Deadline, states: States, now: datetime) -> Step:  # noqa: ARG002 - the state decides
        """Report an execution that expired, or a worker that fell silent."""
        state, name = states(EXECUTION(scope)), deadline.key
        job, id_ = state.request.job, state.request.execution_id
        report = partial(report_of_stage, self._key, subjects.LEASE_KEEPER, job=job, execution_id=id_)
        if not name:
            error = execution.expiry(state)
            return DONE if error is None else done(report(error, step=state.request.plan.steps[0].name))
        step, limit = state.steps[name], execution.planned_step(state, name).timeout
        if step.claimed_at is not None and deadline.at >= step.claimed_at + lease_span(limit):
            error = execution.silence(limit)
        else:
            facts = (fact.message for fact in states(FACTS(scope)))
            [*_, claim] = (fact for fact in facts if isinstance(fact, Started) and fact.step == name)
            death = Death(agent=claim.worker or claim.holder or "a worker without a name", at=deadline.at)
            error = Failure(type="lease_over", deaths=(death,))
        return done(report(error, step=name, attempt=step.attempt, delivery=step.delivery, claim=step.claim))


LEASE_KEEPER: Final = Stage(
    name="lease_keeper",
    purpose="ends leases that ran out",
    consumes="open executions: the ends of their leases, times of expiry",
    decides="reports of silent workers, and of executions that were not started in time",
    access=Access(appends=(Report,)),
    start=lambda context: LeaseKeeper(context.report_key),
    deadlines=(DeadlineRule(EXECUTION, LeaseKeeper.deadlines, LeaseKeeper.on_deadline),),
)
