"""Registrar: shows the definitions in force in the KV bucket `definitions`."""

from datetime import datetime
from typing import Final

from .. import subjects
from ..domain.events import Defined, DefinitionFact, Message, Recorded
from ..domain.job_record import Registration
from ..engine.fold import LEDGER
from ..engine.kinds import ENTRY
from ..engine.stage import Access, Stage, Subscription
from ..engine.step import DONE, Put, States, Step, again, done
from ..subjects import Bucket, Stream


class Registrar:
    """Writes the current definition of each job.

    It reads the newest definition each time, so that the last write is right in any order of messages.
    """

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


_CHANGES: Final = tuple(subjects.filter_for(f"ledger.{event}") for event in ("defined", "paused", "resumed", "deleted"))

REGISTRAR: Final = Stage(
    name="registrar",
    purpose="shows the registered jobs",
    consumes="`defined`, `paused`, `resumed`, `deleted`",
    decides="the KV bucket `definitions`",
    # `tocsin run` registers the jobs of `jobs_file` with the registrar's rights.
    access=Access(appends=(Defined,), writes=((Bucket.DEFINITIONS, ">"),)),
    start=lambda _: Registrar(),
    subscriptions=(Subscription("registrar", Stream.LEDGER, _CHANGES, decide=Registrar.on_change),),
)
