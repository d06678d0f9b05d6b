"""Message ids in a stream that others publish into too.

Ids are one space for all publishers of a stream, and the server stores the first message of an id only. Programs outside
publish into the stream of the ledger, so the message of an input's id may be theirs.
"""

from collections.abc import Callable
from dataclasses import replace

from .... import subjects
from ....ports import LogUnavailable, NotAllowed, Publish, ids_used_up, other_ids
from ....subjects import Stream
from ..client import wire
from ..client.connection import Connection
from ..client.names import Names
from ..client.transport import Outgoing
from ..client.wire import Duplicate


class MessageIds:
    """The ids of one connection's inputs."""

    def __init__(self, connection: Connection, names: Names, message_of: Callable[[Publish], Outgoing]) -> None:
        """`message_of` makes the message of an input."""
        self._connection = connection
        self._names = names
        self._message_of = message_of

    async def resolve(self, write: Publish, first: Duplicate) -> int | Exception:
        """Store an input whose id a message has, unless that is the input.

        Return the sequence of the input, or the error of storing it.
        """
        if subjects.stream_of(write.subject) is not Stream.LEDGER:
            return first
        result: int | Exception = first
        ids = other_ids(write.message_id)
        try:
            while isinstance(result, Duplicate) and not await self._is_of(write.subject, result):
                if (message_id := next(ids, None)) is None:
                    return ids_used_up(write.subject, write.message_id)
                message = self._message_of(replace(write, message_id=message_id))
                (result,) = await self._connection.store_each([message])
        except NotAllowed:
            return first  # leaders that may not read the ledger store events there, under ids that begin at random
        except LogUnavailable as error:
            return error
        return result

    async def _is_of(self, subject: str, sequence: int) -> bool:
        """Return whether a stored message has this subject, or is gone."""
        verb = f"STREAM.MSG.GET.{self._names.stream(subjects.stream_of(subject))}"
        reply = await self._connection.find(verb, b'{"seq":%d}' % sequence, absent=wire.NO_MESSAGE_FOUND)
        own: str = self._names.to_wire(subject)
        return reply is None or reply["message"]["subject"] == own
