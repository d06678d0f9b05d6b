"""The gRPC server: the service `tocsin.v1.Scheduler`, health and reflection."""

import asyncio
import ipaddress
import re
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import grpc
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from starlette.types import ASGIApp
from typing_extensions import override

from ... import telemetry
from ...domain.trace_context import parse
from ...settings import Grpc, GrpcTls, SettingsError
from ...v1 import scheduler_pb2 as pb
from ..http.api.dependencies import Components
from ..http.sockets import PortInUseError
from ..pem_files import load_authorities, load_pair, read_file, wrong
from .service import ACCEPTED, CODE, STATUS, Api, Caller, Refused, SchedulerService

REQUEST_S: Final = 10.0
"""Time within which the request of a call has to arrive."""

Continue = Callable[[Any], Awaitable[Any]]


def address_of(peer: str) -> str:
    """Return the address in a peer such as `ipv4:127.0.0.1:5` or `ipv6:%5B::1%5D:5`."""
    host = unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return "unknown"


class Places:
    """A number of places, each for one call.

    A call that finds none free takes the place of the oldest call from the address with the most calls.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[asyncio.Timeout, str] = {}
        """The ends of the calls with a place and the addresses of their callers, beginning with the oldest."""

    @asynccontextmanager
    async def place(self, address: str, seconds: float | None) -> AsyncIterator[None]:
        """Hold a place for at most some seconds; None: until a new call takes it.

        `address`: the address of the caller.

        Raises:
            TimeoutError: the time is over, or a new call took the place.
        """
        async with asyncio.timeout(seconds) as end:
            self._evict(address)
            self._held[end] = address
            try:
                yield
            finally:
                self._held.pop(end, None)

    def _evict(self, address: str) -> None:
        if len(self._held) < self._most:
            return
        [(busiest, _)] = Counter((*self._held.values(), address)).most_common(1)
        oldest = next(end for end, holder in self._held.items() if holder == busiest)
        del self._held[oldest]
        with suppress(RuntimeError):  # its own time is over in this turn of the loop
            oldest.reschedule(asyncio.get_running_loop().time())


class OpenCalls(grpc.aio.ServerInterceptor):  # type: ignore[misc] # grpc has no types
    """Lets calls hold a place until their request has arrived.

    Calls that need no token hold another place until they end.
    """

    def __init__(self, service: str, requests: Places, conversations: Places) -> None:
        """Have separate places for both kinds of calls.

        `service`: the full name of the service that requires a token. `requests`: for calls that wait for their request.
        `conversations`: for watches of health and for reflection.
        """
        self._prefix = f"/{service}/"
        self._requests = requests
        self._conversations = conversations

    @override
    async def intercept_service(self, continuation: Continue, handler_call_details: Any) -> Any:
        """Return the handler of a call, which itself receives the request."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        codec = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.stream_stream is not None:
            return grpc.stream_stream_rpc_method_handler(self._conversation(handler.stream_stream), **codec)
        if handler.unary_unary is not None:
            return grpc.stream_unary_rpc_method_handler(self._answer(handler.unary_unary), **codec)
        if handler_call_details.method.startswith(self._prefix):
            return grpc.stream_stream_rpc_method_handler(self._stream(handler.unary_stream), **codec)
        return grpc.stream_stream_rpc_method_handler(self._watch(handler.unary_stream), **codec)

    def _answer(self, do: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def answer(requests: AsyncIterator[Any], context: Any) -> Any:  # noqa: ANN401 - grpc has no types
            return await do(await self._request(requests, context), context)

        return answer

    def _stream(self, do: Callable[..., Any]) -> Callable[..., AsyncIterator[Any]]:
        async def stream(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: ANN401 - likewise
            request = await self._request(requests, context)
            async with aclosing(do(request, context)) as messages:
                async for message in messages:
                    yield message

        return stream

    def _watch(self, do: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def watch(requests: AsyncIterator[Any], context: Any) -> None:  # noqa: ANN401 - likewise
            request = await self._request(requests, context)
            async with _place(self._conversations, context, None):
                await do(request, context)

        return watch

    def _conversation(self, do: Callable[..., Any]) -> Callable[..., AsyncIterator[Any]]:
        async def converse(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: ANN401 - likewise
            async with _place(self._conversations, context, None), aclosing(do(requests, context)) as messages:
                async for message in messages:
                    yield message

        return converse

    async def _request(self, requests: AsyncIterator[Any], context: Any) -> Any:  # noqa: ANN401 - likewise
        async with _place(self._requests, context, REQUEST_S):
            request = await anext(requests, None)
        if request is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request. Send one message")
        return request


@asynccontextmanager
async def _place(places: Places, context: Any, seconds: float | None) -> AsyncIterator[None]:  # noqa: ANN401 - likewise
    """Hold a place for a caller; the call ends if another call takes it."""
    try:
        async with places.place(address_of(context.peer()), seconds):
            yield
    except TimeoutError:
        detail = "the call was open for too long without a token or a request. Call again"
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, detail)


SERVICE: Final = pb.DESCRIPTOR.services_by_name["Scheduler"]
GRACE_S: Final = 5.0
"""Time that running calls get at shutdown."""
MAX_METADATA_BYTES: Final = 16_384
KEEP_ALIVE_MS: Final = 30_000
"""Interval of pings, without which a lost caller would keep its places until the server stops."""
PING_TIMEOUT_MS: Final = 10_000
"""Time without an answer to a ping after which a connection is closed."""
IDLE_MS: Final = 300_000
"""Time without a call after which a connection is closed."""
HANDSHAKE_MS: Final = 10_000
"""Time within which a new connection has to complete the handshake of TLS."""
FEW_PLACES: Final = 4
"""Places of each kind of open call if an eighth of `grpc.max_calls` is less, and a quarter is not."""
SECTION: Final = "grpc.tls"


class CertificateFiles:
    """The files of the settings, as they were when they were read last."""

    def __init__(self, tls: GrpcTls) -> None:
        self._tls = tls
        self._seen = self._states()
        self.configuration = self._read()

    def changed(self) -> Any:  # noqa: ANN401 - grpc has no types
        """Return the new configuration if a file has changed and no file is wrong."""
        states = self._states()
        if states == self._seen:
            return None
        self._seen = states
        try:
            self.configuration = self._read()
        except SettingsError as error:
            _log.error("certificate kept; its new files are wrong", action="certificate-refused", error=str(error))
            return None
        _log.info("certificate renewed", action="certificate-renewed", cert=str(self._tls.cert))
        return self.configuration

    def _states(self) -> list[tuple[int, int, int] | None]:
        return [None if path is None else _state(path) for path in (self._tls.cert, self._tls.key, self._tls.client_ca)]

    def _read(self) -> Any:  # noqa: ANN401 - likewise
        tls, context = self._tls, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        load_pair(context, SECTION, tls.cert, tls.key)
        if tls.cert is None or tls.key is None:
            wrong(f"{SECTION}.cert", "`client_ca` is set without a `cert`. Set `cert` and `key` too", code="required")
        callers = None if tls.client_ca is None else load_authorities(context, f"{SECTION}.client_ca", tls.client_ca)
        pair = read_file(f"{SECTION}.key", tls.key), read_file(f"{SECTION}.cert", tls.cert)
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=callers)


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino


_log = telemetry.get_logger("tocsin.grpc")


@asynccontextmanager
async def serving_grpc(app: ASGIApp, parts: Components, host: str, settings: Grpc, port: int) -> AsyncIterator[str]:
    """Serve within the block; yield the address.

    Raises:
        PortInUseError: the port is taken.
        SettingsError: a file of `grpc.tls` is missing or wrong.
    """
    tls = None
    if settings.tls.is_on:
        files, is_mutual = CertificateFiles(settings.tls), settings.tls.client_ca is not None
        tls = grpc.dynamic_ssl_server_credentials(
            files.configuration, files.changed, require_client_authentication=is_mutual
        )
    open_calls = max(settings.max_calls // 8, min(FEW_PLACES, settings.max_calls // 4), 1)
    server = grpc.aio.server(
        options=(
            ("grpc.max_receive_message_length", settings.max_message_bytes),
            ("grpc.max_send_message_length", settings.max_message_bytes),
            ("grpc.max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.keepalive_time_ms", KEEP_ALIVE_MS),
            ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.max_allowed_incoming_connections", settings.max_connections),
            ("grpc.max_connection_idle_ms", IDLE_MS),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
            ("grpc.so_reuseport", 0),
        ),
        maximum_concurrent_rpcs=settings.max_calls,
        interceptors=(OpenCalls(SERVICE.full_name, Places(open_calls), Places(open_calls)),),
    )
    service = SchedulerService(Api(app), parts, max_streams=settings.max_streams_per_caller)
    server.add_generic_rpc_handlers((_handlers(service),))
    state = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(state, server)
    names = (SERVICE.full_name, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = server.add_insecure_port(at) if tls is None else server.add_secure_port(at, tls)
    except RuntimeError:
        raise PortInUseError(f"cannot listen on {host}:{port} (`grpc.port`)") from None
    await server.start()
    for name in ("", SERVICE.full_name):
        await state.set(name, health_pb2.HealthCheckResponse.SERVING)
    try:
        yield f"{host}:{bound}"
    finally:
        await state.enter_graceful_shutdown()
        await server.stop(GRACE_S)


def _handlers(service: SchedulerService) -> Any:  # noqa: ANN401 - grpc has no types
    handlers = {}
    for method in SERVICE.methods:
        do = getattr(service, re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower())
        codec = {
            "request_deserializer": GetMessageClass(method.input_type).FromString,
            "response_serializer": GetMessageClass(method.output_type).SerializeToString,
        }
        if method.server_streaming:
            handlers[method.name] = grpc.unary_stream_rpc_method_handler(partial(_stream, do), **codec)
        else:
            handlers[method.name] = grpc.unary_unary_rpc_method_handler(partial(_answer, do), **codec)
    return grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)


@asynccontextmanager
async def _refusing(context: Any) -> AsyncIterator[None]:  # noqa: ANN401 - likewise
    """End the call if the block raises, without details of an unexpected error."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        if not isinstance(error, Refused):
            _log.error("unexpected error", action="grpc-failed", exc_info=error)
            error = Refused(500, "unforeseen", "an unexpected error. The log of the server has the traceback")
        status = STATUS.get(error.status, grpc.StatusCode.INVALID_ARGUMENT)
        await context.abort(status, error.detail, ((CODE, error.code),))


async def _answer(do: Callable[[Caller, Any], Awaitable[Any]], request: Any, context: Any) -> Any:  # noqa: ANN401 - likewise
    async with _refusing(context):
        return await do(_caller_of(context), request)


async def _stream(do: Callable[..., AsyncGenerator[Any, None]], request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: ANN401 - likewise
    async with _refusing(context), aclosing(do(_caller_of(context), request)) as messages:
        async for message in messages:
            if message is ACCEPTED:
                await context.send_initial_metadata(())
            else:
                yield message


def _caller_of(context: Any) -> Caller:  # noqa: ANN401 - likewise
    metadata = tuple(context.invocation_metadata() or ())
    given = (value for name, value in metadata if name == "authorization")
    trace = parse(dict(metadata).get("traceparent"))
    return Caller(
        address_of(context.peer()),
        tuple(value.encode() if isinstance(value, str) else value for value in given),
        None if trace is None else trace.traceparent,
    )
