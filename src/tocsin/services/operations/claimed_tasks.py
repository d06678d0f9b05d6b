"""Claims of workers over HTTP as the log has them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ... import subjects, telemetry
from ...domain.events import Message, Recorded
from ...ports import EventLog
from . import event_waiter
from .lookup import ExecutionMatch
from .task_leases import Held, Holder, held_of

_log = telemetry.get_logger("tocsin.operations")


@dataclass(frozen=True, slots=True)
class Claimed:
    """A stored claim of a step, and its sequence."""

    scope: str
    step: str
    sequence: int

    async def read(
        self, log: EventLog, facts: Sequence[Recorded[Message]] = (), holder: Holder | None = None
    ) -> Held | None:
        """Return the step as its worker holds it; None: the claim is over.

        `facts` are those of its execution, if they are known.

        Raises:
            OperationError: the claim is of a holder other than `holder`.
        """
        if not self._is_in(facts):  # a lagging replica answered, or the read failed
            facts = await event_waiter.until(log, self.scope, self._is_in)
        _, job, execution_id, _ = self.scope.split(".")
        found = ExecutionMatch(subjects.name(job), execution_id, tuple(facts))
        return held_of(found, step=self.step, claim=self.sequence, holder=holder)

    def _is_in(self, facts: Sequence[Recorded[Message]]) -> bool:
        return bool(facts) and facts[-1].sequence >= self.sequence


async def held_by(
    log: EventLog, claims: Sequence[Claimed], *, holder: Holder | None = None, failures: Sequence[BaseException] = ()
) -> list[Held]:
    """Return what the worker of some claims holds, in their order.

    `failures` are those of other claims.

    Raises:
        Exception: the first failure, if nothing is held.
    """
    known = await _known(log, claims)
    results = await asyncio.gather(
        *(claim.read(log, known.get(claim.scope, ()), holder) for claim in claims), return_exceptions=True
    )
    held = [result for result in results if isinstance(result, Held)]
    failures = [*failures, *(result for result in results if isinstance(result, BaseException))]
    if failures and not held:
        raise failures[0]
    for failure in failures:  # these tasks are dispatched again when their leases end
        _log.warning("claim unknown; the task is delivered again", action="claim-unknown", error=repr(failure))
    return held


async def _known(log: EventLog, claims: Sequence[Claimed]) -> dict[str, Sequence[Recorded[Message]]]:
    """Read the facts of all claims at once; none if a fact is unreadable."""
    scopes = tuple(dict.fromkeys(claim.scope for claim in claims))  # several claims may be steps of one execution
    if not scopes:
        return {}
    try:
        return dict(zip(scopes, (await log.load_each(*scopes)).facts, strict=True))
    except subjects.DecodeError:  # perhaps of a newer version: read each scope on its own
        return {}
