# ruff: noqa: SLF001 - reaching for private names is what this file is for
"""Hands the messages of some subscriptions over as they are read, without a queue and a task between.

nats-py looks for each message with one regular expression after another, reads all of its headers, and puts it into its
subscription's queue, from which a task takes it to await a callback. For an inbox whose messages are only put aside, a reply
to its request and a delivery to its batch, that is most of what receiving one costs, and receiving is a fifth of a stage's
CPU. This replaces the methods of one client that parse what comes and take a message in; everything that they do not know
goes the usual way. `tests/conformance/test_straight.py` fails when they move.
"""

from collections.abc import Callable
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.protocol.parser import AWAITING_CONTROL_LINE

from .fast_headers import HeaderBlock, read_headers_fast

REACHED_FOR: Final = ("_process_msg", "_ps", "_remove_sub", "_sid")
_MESSAGES: Final = (b"HMSG ", b"MSG ")
_NEWLINE: Final = b"\r\n"


async def listen(client: Client, subject: str, receive: Callable[[Msg], None]) -> Subscription:
    """Subscribe; `receive` is called for each message, in order, and returns at once.

    What it raises goes to the client's `error_cb`. The subscription is in the client's buffer before this yields.

    Raises:
        TypeError: this version of nats-py takes messages in somewhere else.
    """
    receivers = _Straight.of(client).receivers
    number = client._sid + 1
    receivers[number] = receive
    try:
        return await client.subscribe(subject)
    except BaseException:
        del receivers[number]
        raise


class _Straight:
    """What one client does in place of its queues."""

    def __init__(self, client: Client) -> None:
        self.receivers: dict[int, Callable[[Msg], None]] = {}
        self._client = client
        self._process = client._process_msg
        self._remove = client._remove_sub
        self._parse = client._ps.parse
        client._process_msg = self.process  # type: ignore[method-assign]
        client._remove_sub = self.remove  # type: ignore[method-assign]
        client._ps.parse = self.parse  # type: ignore[method-assign]
        read_headers_fast(client)

    @classmethod
    def of(cls, client: Client) -> "_Straight":
        """The one of a client: there is never a second."""
        if missing := [name for name in REACHED_FOR if not hasattr(client, name)]:
            raise TypeError(f"this version of nats-py has no Client.{missing[0]}")
        mine = getattr(client._process_msg, "__self__", None)
        return mine if isinstance(mine, cls) else cls(client)

    async def parse(self, data: bytes = b"") -> None:
        """Take in what was read from the server, up to the last whole message."""
        parser = self._client._ps
        parser.buf.extend(data)
        # The buffer may be another after each message: a connection that is lost begins with a new one.
        while (buffer := parser.buf) and parser.state == AWAITING_CONTROL_LINE and buffer.startswith(_MESSAGES):
            line_end = buffer.find(_NEWLINE)
            if line_end < 0:
                break
            try:
                verb, subject, number, *rest = bytes(buffer[:line_end]).split()
                has_headers = verb == b"HMSG"
                begin = line_end + 2
                head = begin + int(rest[-2]) if has_headers else begin
                end = begin + int(rest[-1])
                sid, reply = int(number), rest[0] if len(rest) > 1 + has_headers else b""
            except (ValueError, IndexError):
                break  # it is no message: the client says what it is
            if len(buffer) < end + 2:
                return  # the rest of it is under way
            headers, body = bytes(buffer[begin:head]), bytes(buffer[head:end])
            del buffer[: end + 2]
            await self.process(sid, subject, reply, body, headers)
        if parser.buf:
            await self._parse()

    async def process(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        """Take a message in."""
        receive = self.receivers.get(sid)
        if receive is None:
            await self._process(sid, subject, reply, data, headers)
            return
        client = self._client
        client.stats["in_msgs"] += 1
        client.stats["in_bytes"] += len(data)
        read: Any = None
        if headers:
            is_plain = headers.startswith(HeaderBlock.BEGIN)
            read = HeaderBlock(headers) if is_plain else await client._process_headers(headers)
        try:
            receive(Msg(client, subject.decode(), reply.decode(), data, read))
        except Exception as error:  # noqa: BLE001 - what is raised here would end the connection
            await client._error_cb(error)

    def remove(self, sid: int, max_msgs: int = 0) -> None:
        """Forget a subscription."""
        self.receivers.pop(sid, None)
        self._remove(sid, max_msgs)
