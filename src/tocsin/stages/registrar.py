"""Registrar: shows the definitions in force in the KV bucket `definitions`."""

from typing import Final

from .. import subjects
from ..domain.events import DefinitionFact, Message, Recorded
from ..domain.job_record import Registration
from ..engine.ledger_reader import LedgerReader
from ..engine.stage import Access, Stage, Subscription
from ..ports import EventLog, Projections, StaleRead
from ..subjects import Bucket, Stream


class Registrar:
    """Writes the current definition of each job.

    It reads the newest definition each time, so that the last write is right in any order of messages.
    """

    def __init__(self, log: EventLog, projections: Projections) -> None:
        self._log = log
        self._projections = projections
        self._ledgers = LedgerReader(log)

    async def on_change(self, recorded: Recorded[Message]) -> None:
        """Show a job's definition, or remove that of a deleted job."""
        if not isinstance(recorded.message, DefinitionFact):
            return
        job = recorded.message.job
        key = subjects.token(job)
        shown = await self._projections.get(Bucket.DEFINITIONS, key)
        ledger, sequence = await self._ledgers.load(job)
        await self._check_newest(job, sequence)
        registration = Registration.of(ledger)
        revision = shown[1] if shown else 0
        if registration is None:
            await self._projections.remove(Bucket.DEFINITIONS, key, expect=revision)
        elif shown is None or shown[0] != registration.encode():
            await self._projections.put(Bucket.DEFINITIONS, key, registration.encode(), expect=revision)
            if not revision:  # no revision reveals a key that was created and removed since it was read
                await self._check_newest(job, sequence)

    async def _check_newest(self, job: str, sequence: int) -> None:
        scope = subjects.ledger(job)
        if await self._log.tail(scope) != sequence:
            raise StaleRead.of(scope)


_CHANGES: Final = tuple(subjects.filter_for(f"ledger.{event}") for event in ("defined", "paused", "resumed", "deleted"))

REGISTRAR: Final = Stage(
    name="registrar",
    purpose="shows the registered jobs",
    consumes="`defined`, `paused`, `resumed`, `deleted`",
    decides="the KV bucket `definitions`",
    access=Access(reads=(Stream.LEDGER,), writes=((Bucket.DEFINITIONS, ">"),)),
    start=lambda context: Registrar(context.log, context.projections),
    subscriptions=(Subscription("registrar", Stream.LEDGER, _CHANGES, Registrar.on_change),),
)
