"""Messages on the fast paths for receiving and sending are equal to those of nats-py itself."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import cast

import nats
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from tests.system.running import DEADLINE
from tocsin.adapters.nats.client.connection import Connection
from tocsin.adapters.nats.client.names import Names
from tocsin.adapters.nats.client.transport import Headers, Outgoing, PublicTransport
from tocsin.adapters.nats.consumers.pull import Received
from tocsin.adapters.nats.fast_client import PRIVATE_NAMES, FastTransport, is_supported


@pytest.fixture
async def client(nats_url: str) -> AsyncIterator[Client]:
    client = await nats.connect(nats_url, error_cb=quietly, reconnect_time_wait=0.01)
    yield client
    await client.close()


async def quietly(_: Exception) -> None:
    """Nothing."""


async def listen(client: Client, subject: str, receive: Callable[[Msg], object]) -> Subscription:
    def receive_parts(subject: str, reply: str, body: bytes, headers: Mapping[str, str] | None) -> None:
        receive(Msg(client, subject, reply, body, cast("Headers", headers)))

    return await FastTransport(client).listen(subject, receive_parts)


async def send(client: Client, subject: str, body: bytes, *, reply: str = "", headers: Headers | None = None) -> None:
    await FastTransport(client).send([Outgoing(subject, body, headers, reply)])


class Both:
    """One inbox heard in both ways."""

    def __init__(self) -> None:
        self.usual: list[Msg] = []
        self.straight: list[Msg] = []

    async def receive(self, message: Msg) -> None:
        self.usual.append(message)

    async def hear(self, client: Client, subject: str) -> list[Subscription]:
        heard = [await client.subscribe(subject, cb=self.receive), await listen(client, subject, self.straight.append)]
        await client.flush()
        return heard

    def told(self) -> list[tuple[str, str, bytes, Headers | None]]:
        one, other = ([(m.subject, m.reply, m.data, m.headers) for m in ms] for ms in (self.usual, self.straight))
        assert one == other
        return one


async def settled(client: Client) -> None:
    await client.flush()
    await asyncio.sleep(0)  # for the task that nats-py puts between
    await client.flush()


MESSAGES: list[tuple[bytes, str, Headers | None]] = [
    (b"", "", None),
    (b"body", "", None),
    (b"body", "a.reply", {"One": "1", "Two": "a: b"}),
    (b"", "", {"Spaces": "  around  "}),
    (b"x" * 100_000, "", {"Many": "lines\r\nInjected: no"}),
    (b"\r\n", "a.reply", {"Name": "Zoë ✓"}),
]


@pytest.mark.parametrize(("body", "reply", "headers"), MESSAGES)
async def test_both_send_and_hear_the_same(client: Client, body: bytes, reply: str, headers: Headers | None) -> None:
    both = Both()
    await both.hear(client, "in.>")
    await client.publish("in.a", body, reply=reply, headers=headers)
    await send(client, "in.a", body, reply=reply, headers=headers)
    await settled(client)
    usual, straight = both.told()
    assert usual == straight
    assert client.stats["out_msgs"] == 2
    assert client.stats["out_bytes"] == 2 * len(body)


async def test_both_paths_report_a_missing_responder(client: Client) -> None:
    both = Both()  # separate connections, because the server notifies only a single subscription
    await client.subscribe("usual", cb=both.receive)
    await listen(client, "straight", both.straight.append)
    await send(client, "nobody", b"", reply="usual")
    await send(client, "nobody", b"", reply="straight")
    await settled(client)
    [usual], [straight] = both.usual, both.straight
    assert (usual.data, usual.headers) == (straight.data, straight.headers)
    assert (straight.headers or {}).get("Status") == "503"


async def test_failing_receiver_affects_neither_connection_nor_others(nats_url: str) -> None:
    errors: list[Exception] = []

    async def tell(error: Exception) -> None:
        errors.append(error)

    client = await nats.connect(nats_url, error_cb=tell)
    both, failure = Both(), RuntimeError("a defect")

    def fail(_: Msg) -> None:
        raise failure

    await listen(client, "in", fail)
    await both.hear(client, "in")
    await send(client, "in", b"1")
    await send(client, "in", b"2")
    await settled(client)
    assert errors == [failure, failure]
    assert [body for _, _, body, _ in both.told()] == [b"1", b"2"]
    await client.close()


async def test_what_is_unsubscribed_is_heard_no_more(client: Client) -> None:
    both = Both()
    heard = await both.hear(client, "in")
    for subscription in heard:
        await subscription.unsubscribe()
    await send(client, "in", b"")
    await settled(client)
    assert both.told() == []


async def test_a_subscription_survives_a_reconnection(client: Client) -> None:
    both = Both()
    await both.hear(client, "in")
    assert client._transport is not None
    client._transport.close()  # type: ignore[no-untyped-call]
    while not (client.stats["reconnects"] and client.is_connected):  # noqa: ASYNC110 - no signal exists
        await asyncio.sleep(0.01)
    await client.flush()
    await send(client, "in", b"again")
    await settled(client)
    assert [body for _, _, body, _ in both.told()] == [b"again"]


async def test_what_cannot_be_sent_is_refused_as_ever(client: Client) -> None:
    with pytest.raises(errors.MaxPayloadError):
        await send(client, "in", b"x" * 2_000_000)
    await client.close()
    with pytest.raises(errors.ConnectionClosedError):
        await send(client, "in", b"")


@pytest.mark.parametrize("subject", ["in.a\x0cb", "in.a\x0b1", "in.\x0c", "in.a\x851"])
async def test_white_space_in_a_subject_ends_nothing(client: Client, subject: str) -> None:
    """The server ends a subject at a space, a tab or a line end only; nats-py reads no such message."""
    heard: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
    await listen(client, "in.*", heard.set_result)
    await send(client, subject, b"body", headers={"One": "1"})
    message = await asyncio.wait_for(heard, DEADLINE)
    assert (message.subject, message.data) == (subject, b"body")
    assert client.stats["reconnects"] == 0


async def test_more_bytes_than_the_buffer_arrive_in_order(client: Client) -> None:
    both = Both()
    await both.hear(client, "in")
    for number in range(3_000):
        await send(client, "in", b"%d " % number + b"x" * 1_000)
    await settled(client)
    while len(both.usual) < 3_000:  # noqa: ASYNC110 - nor here
        await asyncio.sleep(0)
    assert [int(body.split()[0]) for _, _, body, _ in both.told()] == list(range(3_000))


async def test_first_message_of_a_turn_leaves_at_once(client: Client) -> None:
    both, transport, pending = Both(), FastTransport(client), list[int]()
    await both.hear(client, "in")
    for number in range(4):  # nats-py itself only notes a message
        message = Outgoing("in", b"%d" % number, None, "")
        await (client.publish("in", message.body) if number % 2 else transport.send([message]))
        pending.append(client._pending_data_size)
    assert pending[0] == 0 < pending[1] < pending[2] < pending[3]
    await settled(client)
    await transport.send([Outgoing("in", b"4", None, "")])
    assert client._pending_data_size == 0
    await settled(client)
    assert [body for _, _, body, _ in both.told()] == [b"0", b"1", b"2", b"3", b"4"]


MESSAGE = b"MSG in 1 a.reply 4\r\nbody\r\n"
WITH_HEADERS = b"HMSG in 1 20 24\r\nNATS/1.0\r\nOne: 1\r\n\r\nbody\r\n"


@pytest.mark.parametrize("step", [1, 2, 7, 30, 10_000])
async def test_messages_are_equal_for_any_chunks_of_bytes(client: Client, step: int) -> None:
    """Lines that begin no message, such as a ping or an `+OK`, are for the client, also between two messages."""
    both = Both()
    for subscription in await both.hear(client, "in"):
        sid = b" %d " % subscription._id
        messages = [MESSAGE, WITH_HEADERS, MESSAGE * 3, WITH_HEADERS + b"MSG in 1 0\r\n\r\n", b"PONG\r\n"]
        wire = b"+OK\r\n".join(messages).replace(b" 1 ", sid)
        for begin in range(0, len(wire), step):
            await client._ps.parse(wire[begin : begin + step])
        assert not client._ps.buf
    await settled(client)
    assert [(body, reply, headers) for _, reply, body, headers in both.told()] == [
        (b"body", "a.reply", None),
        (b"body", "", {"One": "1"}),
        *[(b"body", "a.reply", None)] * 3,
        (b"body", "", {"One": "1"}),
        (b"", "", None),
    ]


@pytest.mark.parametrize("line", [b"MSG in\r\n", b"MSG in one 4\r\nbody\r\n", b"HMSG in 1 4\r\n", b"MSGS\r\n"])
async def test_what_is_no_message_is_refused_as_ever(client: Client, line: bytes) -> None:
    other = Client()
    await listen(client, "in", print)
    for one in (client, other):
        with pytest.raises(errors.ProtocolError):
            await one._ps.parse(line)


@given(st.integers(0, 7_952_342_400_000_000_000))
@example(1_795_835_512_515_059_999)
def test_time_of_a_delivery_is_truncated_to_microseconds(nanoseconds: int) -> None:
    reply = f"$JS.ACK.LOG.reader.1.7.7.{nanoseconds}.0"
    received = Received(Msg(Client(), "subject", reply, b""), Names())
    assert received.time == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=nanoseconds // 1_000)


@pytest.mark.parametrize("name", PRIVATE_NAMES)
def test_client_with_another_private_name_is_not_supported(name: str) -> None:
    class Moved:
        """A later client."""

    later = Moved()
    for other in PRIVATE_NAMES:
        if other != name:
            setattr(later, other, Client()._ps)
    assert is_supported(Client())
    assert not is_supported(cast("Client", later))
    assert isinstance(Connection(Client()).transport, FastTransport)
    assert isinstance(Connection(cast("Client", later)).transport, PublicTransport)


async def test_many_messages_of_one_call_arrive_in_order(client: Client) -> None:
    both = Both()
    await both.hear(client, "in")
    bodies = [b"%d" % number + b"x" * 5_000 for number in range(500)]
    headers: list[Headers | None] = [None, {"One": "1"}, {"Many": "lines\r\nInjected: no"}]
    await FastTransport(client).send(
        [Outgoing("in", body, headers[number % 3], "a.reply") for number, body in enumerate(bodies)]
    )
    await settled(client)
    while len(both.usual) < len(bodies):  # noqa: ASYNC110 - nor here
        await asyncio.sleep(0)
    assert [body for _, _, body, _ in both.told()] == bodies
