"""The events of commits as messages under their subjects.

It is an event log in memory, and stores decisions as commits.
"""

import asyncio
from collections.abc import Sequence
from itertools import zip_longest

from typing_extensions import override

from ... import subjects, telemetry
from ...domain.events import Message
from ...domain.log_events import is_log_event
from ...engine.causes import Proposals
from ...engine.commit_writer import Chain
from ...engine.fold import Fold
from ...engine.watcher import NobodyWatches, Shown
from ...ports import Append, Write, Written, check_scopes
from ...subjects import DECISION_STREAMS
from ..commit_view import note_decisions
from .event_log import InMemoryEventLog


class ExplodedLog(InMemoryEventLog, NobodyWatches):
    """Implement `ports.EventLog`: a sequence of an event is its number in the log of commits."""

    proposals: Proposals
    fold: Fold
    is_folding = False
    number = 0
    """The number of the newest event that it has."""

    def begin(self, chain: Chain, number: int) -> None:
        """Have all events that were shown, also the events of earlier processes."""

    @override
    def explode(self, shown: Shown, /) -> None:
        if shown.is_own:
            note_decisions([one for one in shown.recorded if one is not None])
        for number, (event, decoded) in enumerate(zip_longest(shown.events, shown.recorded), shown.first):
            if number <= self.number:
                continue  # it was read again
            self.number = number
            if is_log_event(event.subject):
                continue
            stream = self._capturing(event.subject)
            stream.last_sequence = number - 1
            scope = subjects.guard_of(event.subject) or event.subject
            guard = {subjects.EXPECTED_SEQUENCE: "0", subjects.EXPECTED_SUBJECT: scope}
            stream.store(
                event.subject,
                bytes(event.body),
                headers=guard,
                time=shown.at,
                decoded=None if decoded is None else decoded.message,
            )

    @override
    async def append(self, fact: Message, *, expect: int) -> int:
        if subjects.stream_of(subjects.scope_of(fact)) not in DECISION_STREAMS:
            return await super().append(fact, expect=expect)
        [written] = await self.write([Append((fact,), expect)])
        if written.error is not None:
            raise written.error
        return written.sequences[0]

    @override
    async def write(self, writes: Sequence[Write]) -> list[Written]:
        check_scopes(writes)
        return list(await asyncio.gather(*map(self._write, writes)))

    async def _write(self, write: Write) -> Written:
        if not isinstance(write, Append) or subjects.stream_of(write.scope) not in DECISION_STREAMS:
            [written] = await super().write([write])
            return written
        try:
            sequences = await self.proposals.propose(
                telemetry.bound_value("stage") or "api", write.events, expect=write.expect
            )
        except Exception as error:  # noqa: BLE001 - returned to the caller
            return Written((), error)
        return Written(sequences)
