# ruff: noqa: SLF001 - using private names of nats-py is the purpose of this module
"""Faster publishing, header parsing and delivery than nats-py has, in private names of one client.

Publish: nats-py validates each subject, and each header letter by letter. Our subjects are built by `subjects` and our headers
are named in `wire`, so both are valid. `send` appends the command to the client's buffer, in a third of the time.

Headers: every message of Tocsin has headers, and parsing them took a tenth of a stage's CPU time. `parse` takes a quarter of
the time, and `HeaderBlock` parses a header only when it is read.

Delivery: nats-py matches each message with several regular expressions, parses its headers and puts it into its subscription's
queue, from which a task takes it and awaits a callback. For an inbox that only stores messages, such as replies, this is most
of the cost of receiving, which takes a fifth of a stage's CPU time. `listen` calls a function while the message is read.
Messages that it does not know take the usual way.

This is the only module that uses private names of nats-py. `tests/conformance/test_fast_headers.py` and `test_inline_delivery.py`
compare the results with those of nats-py, and fail if the names move.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, TypeAlias

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import MsgAlreadyAckdError
from nats.protocol.parser import AWAITING_CONTROL_LINE
from typing_extensions import override

Headers: TypeAlias = dict[str, str]

_LARGE_BACKLOG_BYTES: Final = 1_000_000
"""If more bytes wait to be written, `Client.publish` decides whether to wait."""


async def send(client: Client, subject: str, body: bytes, *, reply: str = "", headers: Headers | None = None) -> None:
    """Publish as `Client.publish` does, and call it in every unusual case.

    The names of `headers` must be the tokens of `wire`.
    """
    lines = [f"{name}: {value.strip()}\r\n" for name, value in headers.items()] if headers else []
    block = "".join(lines)
    pending, queue = client._pending, client._flush_queue
    if (
        client._status != Client.CONNECTED
        or queue is None
        or len(body) > client._max_payload
        or client._pending_data_size > _LARGE_BACKLOG_BYTES
        or len(block.splitlines()) != len(lines)  # a value of several lines
    ):
        await client.publish(subject, body, reply=reply, headers=headers)
        return
    if block:
        head = f"NATS/1.0\r\n{block}\r\n".encode()
        size = len(head)
        command = b"%b%b%b\r\n" % (f"HPUB {subject} {reply} {size} {size + len(body)}\r\n".encode(), head, body)
    else:
        command = b"%b%b\r\n" % (f"PUB {subject} {reply} {len(body)}\r\n".encode(), body)
    pending.append(command)
    client._pending_data_size += len(command)
    client.stats["out_msgs"] += 1
    client.stats["out_bytes"] += len(body)
    if queue.empty():
        await client._flush_pending()


async def acknowledge(message: Msg) -> None:
    """Acknowledge a message as `Msg.ack` does, through `send`.

    Raises:
        MsgAlreadyAckdError: the message is settled already.
    """
    if message.is_acked:
        raise MsgAlreadyAckdError(message)
    await send(message._client, message.reply, b"")
    message._ackd = True


def server_info(client: Client) -> dict[str, Any]:
    """Return the INFO message of the server that a client is connected to."""
    return client._server_info


PARSER_METHOD: Final = "_parse_header_lines"
_WHITESPACE: Final = " \t\n\r\x0b\x0c"


def read_headers_fast(client: Client) -> None:
    """Let a client parse headers fast, if this version of nats-py has the method."""
    if hasattr(client, PARSER_METHOD):
        setattr(client, PARSER_METHOD, parse)


def parse(raw: bytes) -> dict[str, str]:
    """Return the headers of a block of `Name: Value` lines.

    Lines without a colon and invalid names are skipped.
    """
    headers: dict[str, str] = {}
    for line in raw.decode("utf-8", "replace").split("\r\n"):
        name, colon, value = line.partition(":")
        name = name.strip(_WHITESPACE)
        if colon and name.isascii() and (not name or name.split() == [name]):
            headers[name] = value.strip(_WHITESPACE)
    return headers


class HeaderBlock(Mapping[str, str]):
    """The headers of a message, each parsed when it is read.

    Most messages have at most a single header read.
    """

    BEGIN: ClassVar = b"NATS/1.0\r\n"
    """The beginning of a block without a status."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        """`raw` must begin with `BEGIN`."""
        self._raw = raw

    @override
    def __getitem__(self, name: str) -> str:
        value = self._find(name)
        return self._read()[name] if value is None else value

    @override
    def get(self, name: str, default: Any = None) -> Any:
        """Return a header whose name is written without blanks around it."""
        value = self._find(name)
        return default if value is None else value

    def _find(self, name: str) -> str | None:
        label = b"\r\n%b:" % name.encode()
        begin = self._raw.rfind(label)
        if begin < 0:
            return None
        begin += len(label)
        return self._raw[begin : self._raw.index(b"\r\n", begin)].decode("utf-8", "replace").strip(_WHITESPACE)

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    @override
    def __len__(self) -> int:
        return len(self._read())

    def __bool__(self) -> bool:
        return len(self._raw) > len(self.BEGIN) + 2

    def _read(self) -> dict[str, str]:
        return parse(self._raw[len(self.BEGIN) :])


PRIVATE_NAMES: Final = ("_process_msg", "_ps", "_remove_sub", "_sid")
_MESSAGES: Final = (b"HMSG ", b"MSG ")
_NEWLINE: Final = b"\r\n"


async def listen(client: Client, subject: str, receive: Callable[[Msg], None]) -> Subscription:
    """Subscribe, and call `receive` for each message in order; it must return at once.

    Its errors go to the client's `error_cb`. The subscription is in the client's buffer before this yields.

    Raises:
        TypeError: this version of nats-py has other private methods.
    """
    receivers = _Receivers.of(client).receivers
    number = client._sid + 1
    receivers[number] = receive
    try:
        return await client.subscribe(subject)
    except BaseException:
        del receivers[number]
        raise


class _Receivers:
    """The receivers of one client, and the methods that replace the client's own."""

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
    def of(cls, client: Client) -> "_Receivers":
        """Return the receivers of a client, creating them the first time."""
        if missing := [name for name in PRIVATE_NAMES if not hasattr(client, name)]:
            raise TypeError(f"this version of nats-py has no Client.{missing[0]}")
        mine = getattr(client._process_msg, "__self__", None)
        return mine if isinstance(mine, cls) else cls(client)

    async def parse(self, data: bytes = b"") -> None:
        """Process the data that was read from the server, up to the last complete message."""
        parser = self._client._ps
        parser.buf.extend(data)
        # The buffer may be another object after each message, because a lost connection replaces it.
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
                break  # not a message: let the client decide
            if len(buffer) < end + 2:
                return  # the message is not complete
            headers, body = bytes(buffer[begin:head]), bytes(buffer[head:end])
            del buffer[: end + 2]
            await self.process(sid, subject, reply, body, headers)
        if parser.buf:
            await self._parse()

    async def process(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        """Pass a message to its receiver."""
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
        except Exception as error:  # noqa: BLE001 - an error here would end the connection
            await client._error_cb(error)

    def remove(self, sid: int, max_msgs: int = 0) -> None:
        """Remove the receiver of a subscription."""
        self.receivers.pop(sid, None)
        self._remove(sid, max_msgs)
