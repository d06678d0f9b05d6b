"""Group commit: atomic batches of guarded events.

A batch pays for one decision of many events, for a decision of several events in a replicated stream, and for many events
where the server flushes each write (`sync_interval: always`). Elsewhere the batch itself costs the server more than it saves.

The server looks the guard of a scope up once for a whole batch, and passes each message that expects the same sequence.
This is how the events of one decision are stored together: all of them expect the last sequence before the decision. Two
decisions of one scope in one batch would both be stored, although the second does not know of the first. So there must
never be two of them; `ports.check_scopes` refuses such writes.

A batch of decisions holds no inputs, because one id that was stored before refuses the whole batch. That is right only for
inputs that must be stored together, such as the jobs of one request (`store_all`). One failed guard refuses the whole
batch too; its events are then stored one by one, and only those of a failed guard are refused.
"""

import asyncio
import itertools
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from .... import telemetry
from ....ports import LogUnavailable, OutdatedState, RequestRefused
from ....subjects import Stream
from ..client import wire
from ..client.connection import Connection
from ..client.names import Names
from ..client.transport import Outgoing

GroupCommit: TypeAlias = Literal["auto", "always", "off"]
"""When atomic batches are used: `always` is for servers that flush each write, `auto` for all others."""

MAX_BATCH: Final = 1_000
"""The number of messages that the server accepts in a batch."""
MAX_IN_FLIGHT: Final = 8
"""The number of batches that a process sends at a time; a stream accepts 50 from all clients."""
MANY: Final = 32
"""From this number of events on, a batch is cheaper than single events with a flush each, or in waves."""
SEVERAL: Final = 2
"""From this number of events on, one decision is stored faster by a batch if the stream is replicated."""
PATIENCE_S: Final = 15.0
"""How long a batch of inputs is sent again while there is no reply."""
FIRST_PAUSE_S: Final = 0.1
STATE_LIFETIME_S: Final = 60.0
"""The state of a stream is read again after this time."""

_log = telemetry.get_logger("tocsin.nats")


@dataclass(slots=True)
class Decision:
    """Events of one scope, in order; `messages` all expect the same sequence."""

    messages: Sequence[Outgoing]
    sequences: tuple[int, ...] = ()
    """The sequences of the first messages, as far as they are stored."""


@dataclass(frozen=True, slots=True)
class _State:
    replicas: int
    is_allowed: bool
    until: float
    """The loop's time at which the state is read again."""


class GroupCommits:
    """Atomic batches of one connection."""

    def __init__(self, connection: Connection, names: Names, mode: GroupCommit) -> None:
        self._connection = connection
        self._names = names
        self._mode = mode
        self._states: dict[Stream, _State] = {}
        self._batch_ids = (f"{prefix}{number}" for prefix in [secrets.token_hex(8)] for number in itertools.count(1))
        self._in_flight = asyncio.Semaphore(MAX_IN_FLIGHT)

    async def worthwhile(self, stream: Stream, sizes: Sequence[int]) -> list[bool]:
        """Return which decisions should be stored by batches; `sizes` are their numbers of events."""
        nothing = [False] * len(sizes)
        if self._mode == "off" or (max(sizes, default=0) < SEVERAL and sum(sizes) < MANY):
            return nothing
        state = await self._state(stream)
        if not state.is_allowed:
            return nothing
        if self._mode == "always" and sum(sizes) >= MANY:
            return [True] * len(sizes)
        least = SEVERAL if state.replicas > 1 else MANY
        return [size >= least for size in sizes]

    async def store(self, decisions: Sequence[Decision]) -> None:
        """Store the first `MAX_BATCH` messages of decisions of different scopes of one stream.

        The sequences of a stored decision are set; those of refused decisions stay empty.
        """
        await asyncio.gather(*map(self._store, _batches(decisions)))

    async def store_all(self, messages: Sequence[Outgoing]) -> bool:
        """Store messages with ids as one batch.

        It is sent again until there is a reply.

        False: an id was stored before, perhaps by a batch whose reply was lost; nothing is stored now.

        Raises:
            RequestRefused: a message is too large, or the stream does not accept it.
            LogUnavailable: there was no reply, or the stream takes no batches.
        """
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + PATIENCE_S, FIRST_PAUSE_S
        while True:
            try:
                async with self._in_flight:
                    await self._connection.store_together(list(self._marked(messages)))
            except wire.JetStreamError as error:
                if error.err_code == wire.BATCH_REPEATS_ID:
                    return False
                if error.err_code == wire.BATCHES_DISABLED:
                    raise LogUnavailable(f"{error}. Run `tocsin init`, which lets the stream take batches") from error
                if error.err_code != wire.TOO_MANY_BATCHES or loop.time() + pause >= deadline:
                    raise
            except wire.StreamFull:
                raise
            except LogUnavailable:
                if loop.time() + pause >= deadline:
                    raise
            else:
                return True
            await asyncio.sleep(pause)
            pause *= 2

    async def _store(self, batch: Sequence[Decision]) -> None:
        messages = [message for decision in batch for message in decision.messages[:MAX_BATCH]]
        try:
            async with self._in_flight:
                last = await self._connection.store_together(list(self._marked(messages)))
        except (OutdatedState, LogUnavailable, RequestRefused) as error:
            _log.debug("batch refused", action="batch-refused", messages=len(messages), reason=str(error))
            return
        # A stored batch has consecutive sequences, also beside other writers.
        sequences = iter(range(last - len(messages) + 1, last + 1))
        for decision in batch:
            decision.sequences = tuple(itertools.islice(sequences, min(len(decision.messages), MAX_BATCH)))

    def _marked(self, messages: Sequence[Outgoing]) -> Iterator[Outgoing]:
        batch_id = next(self._batch_ids)
        for number, message in enumerate(messages, 1):
            headers = (message.headers or {}) | {wire.BATCH_ID: batch_id, wire.BATCH_SEQUENCE: str(number)}
            if number == len(messages):
                headers[wire.BATCH_COMMIT] = "1"
            yield message._replace(headers=headers)

    async def _state(self, stream: Stream) -> _State:
        now = asyncio.get_running_loop().time()
        state = self._states.get(stream)
        if state is None or now >= state.until:
            try:
                info = await self._connection.manage(f"STREAM.INFO.{self._names.stream(stream)}")
            except (LogUnavailable, RequestRefused):  # not allowed, or no leader: single messages need neither
                state = _State(1, is_allowed=False, until=now)
            else:
                config = info["config"]
                state = _State(config["num_replicas"], bool(config.get("allow_atomic")), now)
            state = self._states[stream] = replace(state, until=now + STATE_LIFETIME_S)
        return state


def _batches(decisions: Iterable[Decision]) -> Iterator[list[Decision]]:
    """Split decisions into batches of at most `MAX_BATCH` messages."""
    batch: list[Decision] = []
    size = 0
    for decision in decisions:
        number = min(len(decision.messages), MAX_BATCH)
        if batch and size + number > MAX_BATCH:
            yield batch
            batch, size = [], 0
        batch.append(decision)
        size += number
    if batch:
        yield batch
