"""The first event of an execution, stored exactly once, and its public event."""

from datetime import datetime
from typing import Final

from .. import subjects
from ..domain.events import Admitted, Dispatched, Message, Planned, PoisonMessage, Recorded, Skipped
from ..domain.execution import Status, admit_and_dispatch
from .kinds import TAIL, execution_state
from .public_events import announce, is_announced
from .step import DONE, Events, States, Step, again, done, refuse

BEGINNINGS: Final = (Planned, Admitted, Dispatched, Skipped, PoisonMessage)
"""The messages that planning an execution stores."""


def plan(first: Planned | Admitted | Skipped, states: States, now: datetime, *, key: bytes) -> Step:
    """Store the first event of an execution and announce it.

    On a redelivery another definition may be in force. The first decision stands. `key` is the installation's, for the
    task of an execution that is admitted and may start at once.
    """
    ref = execution_state(first.job, first.execution_id)
    state = states.guess(ref)
    if state.status is Status.UNKNOWN:
        event = admit_and_dispatch(first, key=key) if isinstance(first, Admitted) else first
        if is_announced(first):
            return again(Events(ref, (event,)), can_wait=True)
        # The state is not needed here any more, unless an empty one is cached and would then be outdated.
        return done(Events(ref, (event,), at=0 if states.is_unread(ref) else None))
    return announce_decision(state.decided, states, now)


def announce_decision(decided: Recorded[Message] | None, states: States, now: datetime) -> Step:
    """Announce the event that admitted or skipped an execution; None: neither is decided yet."""
    return DONE if decided is None else announce(decided, states, now)


def refuse_request(reason: str, states: States, *, job: str, execution_id: str) -> Step:
    """Turn a request into a dead letter, unless an earlier delivery created its execution."""
    if states(TAIL(subjects.execution(job, execution_id))):
        return DONE
    return refuse(reason, job=job)
