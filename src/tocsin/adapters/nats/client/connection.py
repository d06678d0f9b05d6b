"""A NATS connection: requests to JetStream, and messages that the server confirms."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any, Final, Literal, TypeAlias

from nats.aio.client import Client
from nats.errors import StaleConnectionError
from pydantic_core import from_json, to_json
from typing_extensions import override

from .... import telemetry
from ....ports import LogUnavailable, NotAllowed
from ..fast_client import FastTransport, Proof, RotatingClient, is_supported, server_info
from .cancellations import keep_cancellations
from .connection_attempts import TLS_NOT_OFFERED, ConnectionFailed, FirstConnection
from .connection_end import Ending, close
from .requests import Requests
from .transport import Headers, Outgoing, PublicTransport, Transport
from .wire import STREAM_NOT_FOUND, JetStreamError, Reply, raise_rejection, result_of, stored_sequence, too_large

REQUEST_TIMEOUT_S: Final = 5.0
"""The time limit of a request."""
PUBLISH_TIMEOUT_S: Final = 15.0
"""The time for which a publish is retried. Electing the leader of a replicated stream takes 4 to 9 seconds."""
_STATE_QUERIES: Final = ("STREAM.INFO.", "CONSUMER.INFO.")
MAX_LONG_REPLIES: Final = 24
"""Replies of several messages that a client receives at a time. The server disconnects a client that has more than 64 MiB to read."""
REPEAT_PAUSES_S: Final = (0.1, 0.4, 1.0)
"""Pauses before a read is repeated whose reply was lost with the connection."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0


FastClient: TypeAlias = Literal["auto", "off"]
"""Whether private names of nats-py are used where they are there (`auto`), or only its public methods."""
Json: TypeAlias = dict[str, Any]

RECONNECT_FOREVER: Final[Json] = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.2}
"""Options of every NATS client of ours: reconnect without a limit, so that a process survives any outage."""

_log = telemetry.get_logger("tocsin.nats")


class Connection(Requests):
    """A client, its pending requests, and the answers of JetStream.

    Requests raise `LogUnavailable` if there is no reply or the server cannot serve them now, and `JetStreamError` if it rejects them.
    """

    def __init__(
        self,
        client: Client,
        *,
        timeout: float = REQUEST_TIMEOUT_S,
        fast_client: FastClient = "auto",
    ) -> None:
        """Use a client. `timeout`: of one request, in seconds."""
        keep_cancellations()
        super().__init__(client, _transport(client, fast_client), timeout)
        self._on_interrupt: set[Callable[[], None]] = set()
        self._long_replies = asyncio.Semaphore(MAX_LONG_REPLIES)

    @property
    def greeting(self) -> Json:
        """The server's INFO message."""
        return server_info(self.client)

    @override
    def interrupt(self) -> None:
        """Fail every pending request, because the connection and the replies were lost."""
        super().interrupt()
        for callback in tuple(self._on_interrupt):
            callback()

    def on_interrupt(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` at each interruption; the returned function ends that."""
        self._on_interrupt.add(callback)
        return lambda: self._on_interrupt.discard(callback)

    async def store(self, subject: str, body: bytes, headers: Headers) -> int:
        """Publish a message into a stream and return its sequence.

        Raises:
            SequenceConflict: the guard failed.
            RequestRefused: the message is too large, or the stream does not accept it.
        """
        (result,) = await self.store_each([Outgoing(subject, body, headers)])
        if isinstance(result, Exception):
            raise result
        return result

    async def store_each(self, messages: Sequence[Outgoing]) -> list[int | Exception]:
        """Publish messages into streams in one write.

        Return the sequence of each, or the error that `store` would raise. Messages without a reply are sent again until the patience is over. Headers must therefore make a second copy
        harmless, by a guard or a message id. If the reply to a guarded message was lost, the retry ends as a conflict,
        and the caller finds its message when it folds the scope again.
        """
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + PUBLISH_TIMEOUT_S, _FIRST_PAUSE_S
        limit = self.client.max_payload
        results: list[int | Exception | None] = [*(too_large(message, limit) for message in messages)]
        pending = [number for number, result in enumerate(results) if result is None]
        while pending:
            replies = await self.request_each([messages[number] for number in pending])
            for number, reply in zip(pending, replies, strict=True):
                results[number] = result_of(messages[number].subject, reply)
            pending = [number for number in pending if _is_silence(results[number])]
            if not pending or loop.time() + pause >= deadline or self.client.is_closed or self.is_abandoned:
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        return [result for result in results if result is not None]

    async def store_together(self, messages: Sequence[Outgoing]) -> int:
        """Publish an atomic batch in one write and return the sequence of its last message.

        The batch is sent once: if there is no reply, it may be stored. If it is refused, nothing is. Errors: see `store`.
        """
        for message in messages:
            if (error := too_large(message, self.client.max_payload)) is not None:
                raise error
        reply = await self.ask(messages[-1], after=messages[:-1])
        return stored_sequence(messages[-1].subject, reply.data)

    async def manage(self, verb: str, request: bytes = b"", *, by_leader: bool = True) -> Json:
        """Send a request to the JetStream API, such as `STREAM.INFO.<name>`, and return the reply.

        If a stream has no leader, a replica replies with its own, possibly stale state. Such a reply counts only if
        `by_leader` is False.
        """
        reply: Json = from_json((await self.request(f"$JS.API.{verb}", request)).data)
        if error := reply.get("error"):
            raise_rejection(verb, error)
        cluster = reply.get("cluster")
        if by_leader and verb.startswith(_STATE_QUERIES) and cluster and not cluster.get("leader"):
            raise LogUnavailable(f"{verb}: it has no leader")
        return reply

    async def find(self, verb: str, request: bytes = b"", *, absent: int, by_leader: bool = True) -> Json | None:
        """Send a request to the JetStream API; None: the server replies with the error `absent`."""
        try:
            return await self.manage(verb, request, by_leader=by_leader)
        except JetStreamError as error:
            if error.err_code == absent:
                return None
            raise

    async def find_each(self, requests: Sequence[tuple[str, bytes]], *, absent: int) -> list[Json | None]:
        """Do the same as `find` for several requests (verb and body)."""
        messages = [Outgoing(f"$JS.API.{verb}", body) for verb, body in requests]
        results: list[Json | None] = []
        for (verb, _), reply in zip(requests, await self.request_each(messages), strict=True):
            if not isinstance(reply, Reply):
                raise reply
            fields: Json = from_json(reply.data)
            error = fields.get("error")
            if error and error.get("err_code") != absent:
                raise_rejection(verb, error)
            results.append(None if error else fields)
        return results

    async def pages(self, verb: str) -> AsyncIterator[Json]:
        """Yield each page of consumers or of their names (`CONSUMER.LIST.<stream>`); none without the stream."""
        offset = 0
        while page := await self.find(verb, to_json({"offset": offset}), absent=STREAM_NOT_FOUND):
            yield page
            consumers = page.get("consumers") or ()
            offset += len(consumers)
            if not consumers or offset >= page["total"]:
                return

    async def request(self, subject: str, body: bytes = b"", headers: Headers | None = None) -> Reply:
        """Send a request and return its reply, which may be a status message."""
        return await self.ask(Outgoing(subject, body, headers))

    async def request_many(self, subject: str, body: bytes) -> tuple[list[Reply], Reply]:
        """Send a read; return its replies, and the status message that ends them.

        Few are read at a time, because the server counts what a client has not read yet. A read is repeated if the connection was lost.
        """
        message = Outgoing(subject, body)
        async with self._long_replies:
            for pause in REPEAT_PAUSES_S:
                try:
                    return await self.ask_many(message)
                except LogUnavailable as error:
                    if not isinstance(error.__cause__, StaleConnectionError):
                        raise
                await asyncio.sleep(pause)
            return await self.ask_many(message)


def _is_silence(result: int | Exception | None) -> bool:
    return isinstance(result, LogUnavailable) and not isinstance(result, NotAllowed)


def _transport(client: Client, fast_client: FastClient) -> Transport:
    if fast_client == "off":
        return PublicTransport(client)
    if is_supported(client):
        return FastTransport(client)
    _log.warning("this version of nats-py is not known; its public methods are used", action="fast-client-off")
    return PublicTransport(client)


@asynccontextmanager
async def connect(
    servers: str | list[str],
    *,
    within: float | None = 10.0,
    is_encrypted: bool = False,
    fast_client: FastClient = "auto",
    proof: Proof | None = None,
    **options: Any,  # noqa: ANN401 - the options of `nats.connect` have many types
) -> AsyncIterator[Connection]:
    """Open a connection that survives restarts of the servers; close it at the end.

    A server may end a connection for good, for example because its limits or a user's credentials changed. Then the task that opened the
    connection is cancelled, so that the process ends and its supervisor starts it again. `within`: seconds until the first server must answer.
    `is_encrypted`: reject a server that does not speak TLS. `proof` is read at each connection; None: the credentials of `options`.

    Raises:
        LogUnavailable: no server answered in time, or one rejected the client; the text says which and why.
        ConnectionEnded: the server ended the connection for good.
    """
    client = Client() if proof is None else RotatingClient(proof)
    connection = Connection(client, fast_client=fast_client)
    opening, ending = FirstConnection(servers), Ending(client, connection.abandon)

    async def on_disconnect() -> None:
        connection.interrupt()

    async def on_error(error: Exception) -> None:
        if opening.is_over and client.is_connected:
            connection.on_permission_error(error)
            _log.warning("connection error", action="nats-error", error=repr(error))
        else:
            opening.record_failure(error)

    async def on_reconnect() -> None:
        failures = opening.end_of_failures()
        _log.info("connected to NATS again", action="nats-reconnected", servers=opening.where, failures=failures)

    settings: Json = {
        "name": "tocsin",
        "skip_subject_validation": True,  # `subjects` builds each subject from names that were validated before
        **RECONNECT_FOREVER,
        "error_cb": on_error,
        "disconnected_cb": on_disconnect,
        "reconnected_cb": on_reconnect,
        **options,
    }
    try:
        await opening.run(client.connect(servers, **settings), within)
        if is_encrypted and not connection.greeting.get(
            "tls_required"
        ):  # the client uses TLS only if the server requires it
            raise ConnectionFailed(
                f"{opening.where}: that server does not speak TLS, and `nats.tls` or a `tls://` URL requires it",
                code=TLS_NOT_OFFERED,
            )
        # Without reconnecting, the end of a connection is nothing unusual.
        async with ending.watched(opening.where) if settings.get("allow_reconnect", True) else nullcontext():
            yield connection
    finally:
        await close(client)
