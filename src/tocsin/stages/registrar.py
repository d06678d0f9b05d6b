"""Registrar: shows the definitions in force where everybody can list and watch them.

consumes  defined, paused, resumed, deleted
folds     the job's ledger
projects  KV `definitions`, one key a job
"""

from typing import Final

from .. import subjects
from ..domain.events import DefinitionFact, Message, Recorded
from ..domain.job_record import Registration
from ..engine.ledger_reader import LedgerReader
from ..engine.stage import Access, Stage, Subscription
from ..ports import EventLog, Projections, StaleRead
from ..subjects import Bucket, Stream

ACCESS: Final = Access(reads=(Stream.LEDGER,), writes=((Bucket.DEFINITIONS, ">"),))


def registrar(log: EventLog, projections: Projections) -> Stage:
    """Projects each change from the ledger as it is now, so that the last write is right in whatever order they come."""
    ledgers = LedgerReader(log)

    async def on_change(recorded: Recorded[Message]) -> None:
        if not isinstance(recorded.message, DefinitionFact):
            return
        job = recorded.message.job
        key = subjects.token(job)
        shown = await projections.get(Bucket.DEFINITIONS, key)
        ledger, sequence = await ledgers.load(job)
        await check_newest(job, sequence)
        registration = Registration.of(ledger)
        revision = shown[1] if shown else 0
        if registration is None:
            await projections.remove(Bucket.DEFINITIONS, key, expect=revision)
        elif shown is None or shown[0] != registration.encode():
            await projections.put(Bucket.DEFINITIONS, key, registration.encode(), expect=revision)
            if not revision:  # no revision tells of a key that came and went meanwhile
                await check_newest(job, sequence)

    async def check_newest(job: str, sequence: int) -> None:
        if await log.tail(subjects.ledger(job)) != sequence:
            raise StaleRead(f"{job}: its ledger has moved, or a replica that lags was read")

    changes = tuple(subjects.filter_for(f"ledger.{fact}") for fact in ("defined", "paused", "resumed", "deleted"))
    return Stage("registrar", (Subscription("registrar", Stream.LEDGER, changes, on_change),), access=ACCESS)
