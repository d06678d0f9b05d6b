"""The streams as they are stored, read through consumers of one's own."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import cast

from ....ports import Extent, StoredMessage
from ....subjects import Stream
from ..client.connection import Connection
from ..client.names import Names
from ..consumers.received import Received
from .follow import read


class NatsStoredLog:
    """Implements `ports.StoredLog`. It outlives reconnects; what it cannot read because it is gone, it leaves out."""

    def __init__(self, connection: Connection, names: Names) -> None:
        """The streams exist: `provision` made them."""
        self._connection = connection
        self._names = names

    async def archived(self, stream: Stream) -> int:  # noqa: ARG002 - the port's
        """Nothing: these are the streams alone."""
        return 0

    async def may_be_archived(self, scope: str) -> bool:  # noqa: ARG002 - the port's
        """Never: these are the streams alone."""
        return False

    async def extent(self, stream: Stream) -> Extent:
        """What a stream holds now, as its leader says."""
        state = (await self._connection.manage(f"STREAM.INFO.{self._names.stream(stream)}"))["state"]
        return Extent(state["first_seq"], state["last_seq"], state["messages"])

    async def messages(
        self, stream: Stream, *filters: str, after: int | datetime = 0, upto: int
    ) -> AsyncIterator[Sequence[StoredMessage]]:
        """Everything that matches, up to a sequence."""
        if not upto or (isinstance(after, int) and after >= upto):
            return
        make = partial(_portion, stream)
        portions = read(self._connection, self._names, stream, filters, after, make, headers_only=False)
        async with aclosing(cast("AsyncGenerator[_Portion, None]", portions)):
            async for portion in portions:
                found = [message for message in portion.messages if message.sequence <= upto]
                if found:
                    yield found
                if portion.caught_up or portion.upto >= upto:
                    return


@dataclass(frozen=True, slots=True)
class _Portion:
    messages: Sequence[StoredMessage]
    caught_up: bool
    upto: int


def _portion(stream: Stream, received: Sequence[Received], caught_up: bool, upto: int) -> _Portion:  # noqa: FBT001 - as a `Batch` has it
    stored = [StoredMessage(stream, one.sequence, one.time, one.subject, one.headers, one.body) for one in received]
    return _Portion(stored, caught_up, upto)
