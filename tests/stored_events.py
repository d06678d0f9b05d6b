"""All events of a log, read at once, and what tests count in them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import chain
from secrets import token_hex
from typing import Any, Final, TypeAlias, TypeVar

from tocsin import subjects
from tocsin.archive.stream_reader import Selection, decoded, extents, read
from tocsin.domain import ids
from tocsin.domain.events import (
    Cancelled,
    Completed,
    ExecutionFact,
    Failed,
    LedgerFact,
    Message,
    Recorded,
    Skipped,
    Started,
    unfold,
)
from tocsin.engine.report_lists import decode, listed
from tocsin.ports import EventLog, StoredLog
from tocsin.services.audit import Report, audit
from tocsin.subjects import Stream, stream_of

F = TypeVar("F", bound=Message)
End: TypeAlias = Completed | Failed | Cancelled | Skipped

LEDGER: Final = ("ledger.>",)
REQUESTS: Final = ("trigger.>", "enqueue.>")
LOG: Final = ("execution.>", "lock.>", "cron.>", "dead-letter.>", "ownership.>", "unique.>")
REPORTS: Final = ("report.>",)
INPUTS: Final = (*subjects.PUBLIC_TRIGGER_FILTERS, *subjects.PUBLIC_CANCEL_FILTERS)


@dataclass(frozen=True)
class StoredEvents:
    """All that is stored, in the order of each stream."""

    ledger: Sequence[Recorded[Message]] = ()
    log: Sequence[Recorded[Message]] = ()
    reports: Sequence[Recorded[Message]] = ()
    requests: Sequence[Recorded[Message]] = ()
    inputs: Sequence[Recorded[Message]] = ()

    @classmethod
    async def of(cls, log: EventLog) -> "StoredEvents":
        """Read it."""
        return cls(*[await _read(log, filters) for filters in (LEDGER, LOG, REPORTS, REQUESTS, INPUTS)])

    @classmethod
    async def decodable(cls, stored: StoredLog) -> "StoredEvents":
        """Read it without the messages that no version can decode, which outsiders may store among requests and reports."""
        streams = (Stream.LEDGER, Stream.LOG, Stream.REPORTS, Stream.REQUESTS, Stream.INPUTS)
        found: dict[Stream, list[Recorded[Message]]] = {stream: [] for stream in streams}
        selection = Selection(streams)
        async for message in read(stored, selection, await extents(stored, selection)):
            with suppress(subjects.DecodeError):
                found[message.stream].append(decoded(message))
        return cls(*found.values())

    def facts(self, kind: type[F]) -> list[Recorded[F]]:
        """Return the messages of a class, those of the ledger first.

        An admission that is also a task counts as both.
        """
        found: list[Recorded[Any]] = [r for r in unfold(chain(*self.streams)) if isinstance(r.message, kind)]
        return found

    @cached_property
    def jobs(self) -> Mapping[str, Sequence[Recorded[LedgerFact]]]:
        """The ledger of each job."""
        found: dict[str, list[Recorded[LedgerFact]]] = defaultdict(list)
        for recorded in self.facts(LedgerFact):
            found[recorded.message.job].append(recorded)
        return found

    @cached_property
    def executions(self) -> Mapping[str, Sequence[Recorded[ExecutionFact]]]:
        """The facts of each execution."""
        found: dict[str, list[Recorded[ExecutionFact]]] = defaultdict(list)
        for recorded in self.facts(ExecutionFact):
            found[recorded.message.execution_id].append(recorded)
        return found

    @cached_property
    def ends(self) -> Mapping[str, Recorded[End]]:
        """The fact that ended each execution that is over."""
        ends: list[Recorded[Any]] = [r for r in self.log if isinstance(r.message, End)]
        return {recorded.message.execution_id: recorded for recorded in ends}

    @property
    def streams(self) -> Sequence[Sequence[Recorded[Message]]]:
        """The messages of each stream."""
        return self.ledger, self.log, self.reports, self.requests, self.inputs

    @cached_property
    def in_order(self) -> Sequence[Recorded[Message]]:
        """The log and the reports, in the order of time: a report after what it follows."""
        return sorted((*self.log, *self.reports), key=lambda recorded: recorded.time)

    def changed(self, change: Callable[[list[Recorded[Message]]], Iterable[Recorded[Message]]]) -> "StoredEvents":
        """Return what a change makes of each stream."""
        return StoredEvents(*(tuple(change([*stream])) for stream in self.streams))

    def audited(self, *, key: bytes | None = None, patience: timedelta = timedelta()) -> Report:
        """Return the audit's report; `key` is the installation's.

        `patience`: for what may not be decided yet; of an idle system, none.
        """
        return audit(chain(*self.streams), patience=patience, key=key)

    def runs(self) -> Counter[tuple[str, str, int]]:
        """Return the number of claims of each attempt: (execution, step, attempt)."""
        claims = (recorded.message for recorded in self.facts(Started))
        return Counter((claim.execution_id, claim.step, claim.attempt) for claim in claims)


async def _read(log: EventLog, filters: Iterable[str]) -> list[Recorded[Message]]:
    found: list[Recorded[Message]] = []
    for subject in filters:
        if stream_of(subject) is Stream.REPORTS:
            found += await _reports(log, subject)
            continue
        after = 0
        while batch := await log.read(subject, after=after):
            found += batch
            after = batch[-1].sequence
    return sorted(found, key=lambda recorded: recorded.sequence)


async def _reports(log: EventLog, subject: str) -> list[Recorded[Message]]:
    """Read reports, which are stored alone and in lists."""
    found: list[Recorded[Message]] = []
    async with aclosing(log.follow(Stream.REPORTS, subject, after=0, decode=decode)) as batches:
        async for batch in batches:
            found += (one for recorded in batch.messages for one in listed(recorded))
            if batch.caught_up:
                return found
    return found


def uuid7(now: datetime) -> str:
    """Return a new id of a client for a job."""
    return ids.enqueued_id(token_hex(16), 0, now)
