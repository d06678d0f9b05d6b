# ruff: noqa: SLF001 - using private names of nats-py is the purpose of this module
"""Faster publishing, header parsing and delivery than nats-py has, in private names of one client.

Send: nats-py validates each subject, and each header letter by letter. Our subjects are built by `subjects` and our headers
are named in `wire`, so both are valid. `send` appends all commands of a call to the client's buffer at once.

Headers: every message of Tocsin has headers, and parsing them took a tenth of a stage's CPU time. `HeaderBlock` parses a
header only when it is read.

Delivery: nats-py matches each message with several regular expressions, parses its headers and puts it into its subscription's
queue, from which a task takes it and awaits a callback. `listen` calls a function while the message is read. Messages that
it does not know take the usual way.

This is the only module that uses private names of nats-py. `is_supported` finds out whether they are there; without them, and
with the setting `nats.fast_client: off`, `client.transport.PublicTransport` takes its place. The tests in
`tests/conformance/test_fast_headers.py` and `test_inline_delivery.py` compare the results with those of nats-py.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, ClassVar, Final, Protocol, TypeAlias, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import AuthorizationError, Error
from nats.protocol.parser import AWAITING_CONTROL_LINE
from pydantic_core import from_json, to_json
from typing_extensions import override

from ...domain.errors import TocsinError
from .client.transport import Outgoing, Receive, check_unsettled

_T = TypeVar("_T")

_LARGE_BACKLOG_BYTES: Final = 1_000_000
"""If more bytes wait to be written, `send` waits until they are."""
PRIVATE_NAMES: Final = (
    "_flush_pending",
    "_flush_queue",
    "_max_payload",
    "_pending",
    "_pending_data_size",
    "_process_headers",
    "_process_msg",
    "_ps",
    "_remove_sub",
    "_sid",
    "_status",
    "_transport",
)
"""The names of a client that this module uses."""


class Proof(Protocol):
    """Credentials and TLS of a client. `TocsinError`: a file cannot be used."""

    def context(self) -> ssl.SSLContext:
        """Return the TLS context."""

    def identity(self, nonce: str) -> Mapping[str, str]:
        """Return the fields of the message CONNECT that name the user."""


class RotatingClient(Client):
    """A client that reads its proof again at each connection.

    nats-py itself keeps the first TLS context and the first public nkey, and ends or hangs at a file that is half written.
    """

    def __init__(self, proof: Proof) -> None:
        super().__init__()
        self._proof = proof
        self._identity: Mapping[str, str] = {}

    @property
    @override
    def ssl_context(self) -> ssl.SSLContext:
        return _usable(self._proof.context)

    @override
    def _connect_command(self) -> bytes:
        self._identity = self._read_identity()
        verb, _, options = super()._connect_command().partition(b" ")
        return b"%b %b\r\n" % (verb, to_json({**from_json(options), **self._identity}))

    @override
    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except BaseException:
            # nats-py keeps the socket open, and waits without an end for a failed TLS connection to close.
            transport, self._transport = self._transport, None
            if transport is not None:
                transport.close()  # type: ignore[no-untyped-call]
            raise

    @override
    async def _process_err(self, err_msg: str) -> None:
        """Connect again if the server ends the connection of credentials that were replaced meanwhile."""
        with suppress(Error):
            if "auth" in err_msg.lower() and self._read_identity() != self._identity:
                await self._process_op_err(AuthorizationError())
                return
        await super()._process_err(err_msg)

    def _read_identity(self) -> Mapping[str, str]:
        return _usable(lambda: self._proof.identity(self._server_info.get("nonce", "")))


def _usable(read: Callable[[], _T]) -> _T:
    """Return what a proof reads, or raise the error at which a client tries again."""
    try:
        return read()
    except TocsinError as error:
        raise Error(f"nats: {error}") from error


def is_supported(client: Client) -> bool:
    """Return whether this version of nats-py has the private names."""
    return all(hasattr(client, name) for name in PRIVATE_NAMES) and hasattr(client._ps, "parse")


def server_info(client: Client) -> dict[str, Any]:
    """Return the INFO message of a client's server; empty if nats-py hides it."""
    info: dict[str, Any] = getattr(client, "_server_info", {})
    return info


class FastTransport:
    """Implement `client.transport.Transport` for a client that `is_supported`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._has_written = False

    async def send(self, messages: Sequence[Outgoing]) -> None:
        """Publish messages as `Client.publish` does, in one write, and call it in every unusual case."""
        client, connected = self._client, Client.CONNECTED
        commands: list[bytes] = []
        size = bodies = 0
        for message in messages:
            command = _command(message) if client._status == connected else None
            if command is None or len(command) > client._max_payload:
                await self._append(commands, size, bodies)
                commands, size, bodies = [], 0, 0
                subject, body, headers, reply = message
                await client.publish(subject, body, reply=reply, headers=headers)
                continue
            commands.append(command)
            size += len(command)
            bodies += len(message.body)
            if size > _LARGE_BACKLOG_BYTES:
                await self._append(commands, size, bodies)
                commands, size, bodies = [], 0, 0
        await self._append(commands, size, bodies)

    async def listen(self, subject: str, receive: Receive, *, queue: str = "") -> Subscription:
        """Subscribe, and call `receive` for each message in order."""
        client = self._client
        receivers = _Receivers.of(client).receivers
        number = client._sid + 1
        receivers[number] = receive
        try:
            return await client.subscribe(subject, queue=queue)
        except BaseException:
            del receivers[number]
            raise

    async def acknowledge(self, messages: Sequence[Msg]) -> None:
        """Acknowledge delivered messages as `Msg.ack` does, in one write."""
        check_unsettled(messages)
        if self._client._status != Client.CONNECTED:
            for message in messages:
                await message.ack()
            return
        commands = [b"PUB %b 0\r\n\r\n" % message.reply.encode() for message in messages]
        await self._append(commands, sum(map(len, commands)), 0)
        for message in messages:
            message._ackd = True

    async def _append(self, commands: list[bytes], size: int, bodies: int) -> None:
        client, queue = self._client, self._client._flush_queue
        if not commands or queue is None:
            return
        client._pending.append(b"".join(commands))
        client._pending_data_size += size
        client.stats["out_msgs"] += len(commands)
        client.stats["out_bytes"] += bodies
        if client._pending_data_size > _LARGE_BACKLOG_BYTES:
            await client._flush_pending(force_flush=True)
        elif queue.empty() and not self._write():
            await client._flush_pending()

    def _write(self) -> bool:
        """Write the pending commands, once in a turn of the loop; return whether it did."""
        client, writer = self._client, getattr(self._client._transport, "_io_writer", None)
        is_busy = writer and (writer.transport.is_closing() or writer.transport.get_write_buffer_size())
        if self._has_written or writer is None or is_busy or client._status != Client.CONNECTED:
            return False  # the client's own task joins the other writes of a turn, and waits for a busy connection
        self._has_written = True
        asyncio.get_running_loop().call_soon(setattr, self, "_has_written", False)  # noqa: FBT003 - of `setattr`
        writer.writelines(client._pending)
        client._pending, client._pending_data_size = [], 0
        return True


def _command(message: Outgoing) -> bytes | None:
    """Return a publish command; None if a header has several lines."""
    subject, body, headers, reply = message
    if not headers:
        return b"%b%b\r\n" % (f"PUB {subject} {reply} {len(body)}\r\n".encode(), body)
    block = "".join([f"{name}: {value.strip()}\r\n" for name, value in headers.items()])
    if len(block.splitlines()) != len(headers):
        return None
    size = _BLOCK_BYTES + (len(block) if block.isascii() else len(block.encode()))
    head = f"HPUB {subject} {reply} {size} {size + len(body)}\r\nNATS/1.0\r\n{block}\r\n"
    return b"%b%b\r\n" % (head.encode(), body)


_BLOCK_BYTES: Final = len("NATS/1.0\r\n\r\n")
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


@lru_cache(maxsize=64)
def _patterns(name: str) -> tuple[bytes, bytes, bytes]:
    """Return a header's name, the beginning of its line, and the beginning of longer names."""
    word = name.encode()
    return word, b"\r\n%b:" % word, word + b"-"


_HEADERS_BEGIN: Final = b"NATS/1.0\r\n"
_NEWLINE: Final = b"\r\n"


class HeaderBlock(Mapping[str, str]):
    """The headers of a message, each parsed when it is read.

    Most messages have at most a single header read.
    """

    BEGIN: ClassVar = _HEADERS_BEGIN
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
        """Return a header.

        Blanks around its name count only if the block holds the name twice.
        """
        value = self._find(name)
        return default if value is None else value

    def _find(self, name: str) -> str | None:
        """Return the value of a header that is written as `name:`, or None."""
        raw = self._raw
        word, line, longer = _patterns(name)
        begin = raw.find(line)
        if begin < 0:
            return None
        # A second header of this name counts, but a longer name that begins with it does not.
        if raw.rfind(word) != begin + 2 and raw.count(word) - raw.count(longer) > 1:
            return self._read().get(name)
        begin += len(line)
        return raw[begin : raw.index(b"\r\n", begin)].decode("utf-8", "replace").strip(_WHITESPACE)

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


_MESSAGES: Final = (b"HMSG ", b"MSG ")
_MSG_PARTS: Final = 4
_PARTS: Final = {b"MSG": _MSG_PARTS, b"HMSG": 5}
"""The number of words in the line of a message without a reply subject."""
_Message: TypeAlias = tuple[int, bytes, bytes, bytes, bytes]
"""Subscription, subject, reply subject, body and headers."""


def _text(subject: bytes) -> str:
    """Return a subject as text.

    A server accepts and stores subjects that are no UTF-8. Without the message, its reader could not decide on it, and nothing
    newer would ever be archived.
    """
    return subject.decode("utf-8", "replace")


class _Receivers:
    """The receivers of one client, and the methods that replace the client's own."""

    def __init__(self, client: Client) -> None:
        self.receivers: dict[int, Receive] = {}
        self._client = client
        self._errors: list[Exception] = []
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
        owner = getattr(client._process_msg, "__self__", None)
        return owner if isinstance(owner, cls) else cls(client)

    async def parse(self, data: bytes = b"") -> None:
        """Process the data that was read from the server, up to the last complete message."""
        parser = self._client._ps
        parser.buf.extend(data)
        # The buffer may be another object after each await, because a lost connection replaces it.
        while parser.buf and parser.state == AWAITING_CONTROL_LINE and parser.buf.startswith(_MESSAGES):
            end, message, is_partial = self._pass_on(bytes(parser.buf))
            del parser.buf[:end]
            while self._errors:
                await self._client._error_cb(self._errors.pop(0))
            if message is not None:
                await self.process(*message)
            elif is_partial:
                return
            else:
                break
        if parser.buf:
            await self._parse()

    def _pass_on(self, data: bytes) -> tuple[int, _Message | None, bool]:
        """Pass complete messages to their receivers, up to the first that has none.

        Return the end of what was read, the message without a receiver, and whether an incomplete message follows.
        """
        begin, count, size, length, receivers = 0, 0, 0, len(data), self.receivers
        message: _Message | None = None
        is_partial = False
        while (line_end := data.find(_NEWLINE, begin)) >= 0:
            # A subject may contain other white space, such as a form feed.
            parts = data[begin:line_end].split(b" ")
            least = _PARTS.get(parts[0])
            if least is None or len(parts) < least:
                break  # not a message: let the client decide
            start = line_end + 2
            try:
                body = start if least == _MSG_PARTS else start + int(parts[-2])
                end, sid = start + int(parts[-1]), int(parts[2])
            except ValueError:
                break
            if length < end + 2:
                is_partial = True
                break
            subject, reply = parts[1], parts[3] if len(parts) > least else b""
            headers = data[start:body] if body > start else b""
            receive = receivers.get(sid)
            begin = end + 2
            if receive is None or (headers and not headers.startswith(_HEADERS_BEGIN)):
                message = sid, subject, reply, data[body:end], headers
                break
            count += 1
            size += end - body
            try:
                receive(_text(subject), reply.decode(), data[body:end], HeaderBlock(headers) if headers else None)
            except Exception as error:  # noqa: BLE001 - an error here would end the connection
                self._errors.append(error)
        self._client.stats["in_msgs"] += count
        self._client.stats["in_bytes"] += size
        return begin, message, is_partial

    async def process(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        """Pass a message to its receiver, or to the client."""
        receive = self.receivers.get(sid)
        if receive is None:
            await self._process(sid, subject, reply, data, headers)
            return
        client = self._client
        client.stats["in_msgs"] += 1
        client.stats["in_bytes"] += len(data)
        header: Mapping[str, str] | None = None
        if headers:
            is_plain = headers.startswith(HeaderBlock.BEGIN)
            header = HeaderBlock(headers) if is_plain else await client._process_headers(headers)
        try:
            receive(_text(subject), reply.decode(), data, header)
        except Exception as error:  # noqa: BLE001 - an error here would end the connection
            await client._error_cb(error)

    def remove(self, sid: int, max_msgs: int = 0) -> None:
        """Remove the receiver of a subscription."""
        self.receivers.pop(sid, None)
        self._remove(sid, max_msgs)
