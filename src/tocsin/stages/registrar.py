"""Registrar: stores the decisions that operators and programs propose, and shows the definitions in force.

The definitions are in the KV bucket `definitions`.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from .. import subjects, telemetry
from ..domain import events as e
from ..domain.events import ChangeRequest, DefinitionFact, Message, Recorded
from ..domain.job_record import Registration
from ..engine.change_requests import CHANGES, KNOWN_FOR, events_of
from ..engine.fold import LEDGER
from ..engine.kinds import ENTRY
from ..engine.stage import Access, Stage, Subscription
from ..engine.step import ANSWERED, DONE, Events, Put, Reading, States, Step, again, done
from ..subjects import Bucket, Stream

PROPOSED: Final = (
    *(e.Defined, e.Paused, e.Resumed, e.Deleted, e.Cancelled, e.Started, e.Released, e.Replayed, e.Resolved),
    *(e.AgentSwitched, e.AgentDrainStarted, e.AgentGranted, e.QueuePaused, e.QueueResumed, e.QueuePurged),
    *(e.ShardsDefined, e.PolicyDefined, e.NamespacesDefined, e.SilencesDefined, e.Voided),
)
"""The events that operators and programs may propose."""
_SCOPE: Final[Reading[str, None]] = Reading("scope of a proposed event")

_log = telemetry.get_logger("tocsin.stages")


class Registrar:
    """Decides on proposed events, and writes the current definition of each job.

    It reads the newest definition each time, so that the last write is right in any order of messages.
    """

    def __init__(self, key: bytes) -> None:
        """`key`: the key of the installation, which proves a request."""
        self._key = key

    def on_request(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:
        """Store the events of a request, unless a scope has changed since they were decided."""
        request = recorded.message
        if not isinstance(request, ChangeRequest):
            return DONE
        events = events_of(self._key, recorded.subject, request)
        if not isinstance(events, str) and not all(isinstance(event, PROPOSED) for event in events):
            events = "only a stage decides such an event"
        if isinstance(events, str):
            _log.warning("request refused", action="request-refused", subject=recorded.subject, reason=events)
            return done(signals=(ANSWERED,))
        is_recent = abs(now - request.since) < KNOWN_FOR
        for scope, expect in request.expect.items():
            number = states.at(_SCOPE(scope))
            may_have_left = is_recent and not number and scope.startswith("dead-letter.")
            if number != expect and not may_have_left and not (expect < number and _follows(events, scope, states)):
                return done(signals=(ANSWERED,))
        stored = (_since_request(event, recorded.time, states, now) for event in events)
        return done(*(Events(_SCOPE(subjects.scope_of(event)), (event,)) for event in stored))

    def on_change(self, recorded: Recorded[Message], states: States, now: datetime) -> Step:  # noqa: ARG002 - no decision on the time
        """Show a job's definition, or remove that of a deleted job."""
        if not isinstance(recorded.message, DefinitionFact):
            return DONE
        job = recorded.message.job
        entry = ENTRY((Bucket.DEFINITIONS, subjects.token(job)))
        shown = states(entry)  # read before the ledger, so that a newer definition has a newer revision
        registration = Registration.of(states(LEDGER(subjects.ledger(job))))
        if registration is None:
            return done(Put(entry, None))  # also if a replica shows no entry: the guard reveals that it lags
        value = registration.encode()
        if shown is None:
            return again(Put(entry, value))  # no revision reveals a key that was created and removed since it was read
        return DONE if shown[0] == value else done(Put(entry, value))


def _follows(events: Sequence[Message], scope: str, states: States) -> bool:
    """Return whether a job had no newer change; instants since then do not count."""
    first = next(event for event in events if subjects.scope_of(event) == scope)
    return isinstance(first, DefinitionFact) and states(LEDGER(scope)).newest == first.previous


def _since_request(event: Message, at: datetime, states: States, now: datetime) -> Message:
    """Return an event; a change is in force from its request, if possible."""
    if not isinstance(event, DefinitionFact) or at >= now:
        return event
    return event.changed(since=at) if states(LEDGER(subjects.ledger(event.job))).may_change_at(at) else event


_CHANGES: Final = tuple(subjects.filter_for(f"ledger.{event}") for event in ("defined", "paused", "resumed", "deleted"))

REGISTRAR: Final = Stage(
    name="registrar",
    purpose="stores the decisions of operators, and shows the registered jobs",
    consumes="`change`, `defined`, `paused`, `resumed`, `deleted`",
    decides="the events that requests propose; the KV bucket `definitions`",
    access=Access(appends=PROPOSED, writes=((Bucket.DEFINITIONS, ">"),)),
    start=lambda context: Registrar(context.report_key),
    subscriptions=(
        Subscription("registrar", Stream.LEDGER, _CHANGES, decide=Registrar.on_change, is_at_edge=True),
        Subscription(
            "registrar-requests",
            Stream.REQUESTS,
            (CHANGES,),
            decide=Registrar.on_request,
            is_proven=lambda _, __: False,
        ),
    ),
)
