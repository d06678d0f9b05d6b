"""The function `tocsin.http`: it sends the request of a definition."""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import httpcore
import httpx
from pydantic import JsonValue

from ...domain.definition import DefinitionProblem, size_of
from ...domain.definition.fields import json_problem, storable
from ...domain.definition.http_request import MAX_URL, HttpRequest, HttpUrl, is_success, split_url, target_problem
from ...domain.events.triggers import HOPS_HEADER
from ...domain.http_answer import is_retryable, retry_after
from ...settings import SettingsError
from ...settings.builtin import HttpRules
from ..builtin_call import BuiltinCall, BuiltinFailure, wrong_input
from ..results import INVALID_RESULT, MAX_RESULT_BYTES
from .guarded_network import NOT_ALLOWED, GuardedNetwork

CONNECTION_FAILED: Final = "http_connection_failed"
MAX_HEADER: Final = 8_192
"""Characters of a header's value."""
MAX_BODY: Final = 1_048_576
"""Characters, or bytes as JSON, of a body."""
MAX_TEXT: Final = 4_096
"""Characters of an answer without JSON that its result has."""
MAX_REASON: Final = 1_024
"""Characters of an answer that an error message has."""
_MARGIN: Final = 8_192
"""Bytes that are read beyond a text that is cut, so that a secret at the cut is whole, and redacted."""
_REASON_WITHIN_S: Final = 5.0
"""Seconds for the text of a failure, which must not hide its status."""
_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")


class _Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    is_cut: bool


class HttpFunction:
    """Sends requests that the rules of a worker allow."""

    def __init__(self, rules: HttpRules, network: GuardedNetwork | None = None) -> None:
        """`network`: by default the network of the rules."""
        if not rules.urls:
            reason = "required for `--builtin http`, and not given: list the beginnings of URLs that requests may have"
            raise SettingsError(DefinitionProblem(reason, field="builtin.http.urls", code="required"))
        self._urls = tuple(url for text in rules.urls if (url := split_url(text)) is not None)
        self._network = network or GuardedNetwork(rules.networks)
        self._ssl = httpx.create_ssl_context(trust_env=False)
        if rules.ca_file is not None:
            try:
                self._ssl.load_verify_locations(rules.ca_file)
            except (OSError, ssl.SSLError) as error:
                reason = f"no readable certificates: {error}"
                problem = DefinitionProblem(reason, field="builtin.http.ca_file", code="file-unreadable")
                raise SettingsError(problem) from None

    async def __call__(self, call: BuiltinCall) -> JsonValue:
        """Send the request of a task, and return its result."""
        request = call.read(HttpRequest, "request")
        url = self._url(request, call)
        headers, content = _headers_and_content(request, call)
        if call.context.traceparent is not None and not any(name.lower() == "traceparent" for name in headers):
            headers["traceparent"] = call.context.traceparent
        if call.context.hops and not any(name.lower() == HOPS_HEADER for name in headers):
            headers[HOPS_HEADER] = str(call.context.hops)
        try:
            async with self._sent(request.method, url, headers, content) as response:
                return await _result(request, url, response, call)
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.RemoteProtocolError, OSError) as error:
            message = f"{request.method} {url.origin}: {str(error)[:MAX_REASON] or type(error).__name__}"
            raise BuiltinFailure(CONNECTION_FAILED, message) from None
        except httpcore.ProtocolError as error:
            raise wrong_input(f"{request.method} {url.origin} cannot be sent: {str(error)[:MAX_REASON]}") from None

    def _url(self, request: HttpRequest, call: BuiltinCall) -> HttpUrl:
        written, url = split_url(request.url), split_url(call.render(request.url, limit=MAX_URL, form="url"))
        if written is None or url is None or url.origin != written.origin:
            raise wrong_input(f"the url {request.url!r} has another form with these values")
        if problem := target_problem(url.target):
            raise wrong_input(f"the url {request.url!r} {problem}, with these values")
        if not any(_covers(allowed, url) for allowed in self._urls):
            message = (
                f"this worker does not allow {url.origin} with this path; add its beginning to its setting "
                "`builtin.http.urls`, or use another queue"
            )
            raise BuiltinFailure(NOT_ALLOWED, message)
        return url

    @asynccontextmanager
    async def _sent(
        self, method: str, url: HttpUrl, headers: dict[str, str], content: bytes | None
    ) -> AsyncIterator[httpcore.Response]:
        """Send a request over a connection of its own, which is closed at the end."""
        pool = httpcore.AsyncConnectionPool(
            ssl_context=self._ssl, max_keepalive_connections=0, network_backend=self._network
        )
        target = httpcore.URL(
            scheme=url.scheme.encode(), host=url.host.strip("[]").encode(), port=url.port, target=url.target.encode()
        )
        host = url.origin.partition("://")[2]
        all_headers = {"Host": host, "User-Agent": "tocsin", "Accept": "*/*", "Accept-Encoding": "identity"}
        own = {name.lower() for name in headers}
        all_headers = {name: value for name, value in all_headers.items() if name.lower() not in own} | headers
        all_headers["Connection"] = "close"
        if content is not None or method in {"POST", "PUT", "PATCH"}:
            all_headers["Content-Length"] = str(len(content or b""))
        raw = [(name.encode(), value.encode()) for name, value in all_headers.items()]
        async with pool, pool.stream(method, target, headers=raw, content=content) as response:
            yield response


def _covers(allowed: HttpUrl, url: HttpUrl) -> bool:
    if (allowed.scheme, allowed.host, allowed.port) != (url.scheme, url.host, url.port):
        return False
    return url.path == allowed.path or url.path.startswith(f"{allowed.path.rstrip('/')}/")


def _headers_and_content(request: HttpRequest, call: BuiltinCall) -> tuple[dict[str, str], bytes | None]:
    headers = dict[str, str]()
    for name, text in request.headers.items():
        value = call.render(text, limit=MAX_HEADER).strip()
        if not _VALUE.fullmatch(value):
            raise wrong_input(f"the value of the header {name} has a character that is not printable ASCII")
        headers[name] = value
    if request.body is None:
        return headers, None
    if isinstance(request.body, str):
        kind, text = "text/plain; charset=utf-8", call.render(request.body, limit=MAX_BODY)
    else:
        kind, text = "application/json", json.dumps(call.render_json(request.body, limit=MAX_BODY), ensure_ascii=False)
    if not any(name.lower() == "content-type" for name in headers):
        headers["Content-Type"] = kind
    try:
        return headers, text.encode()
    except UnicodeEncodeError:
        raise wrong_input("the body has half a surrogate pair") from None


async def _result(request: HttpRequest, url: HttpUrl, response: httpcore.Response, call: BuiltinCall) -> JsonValue:
    if not is_success(request, response.status):
        raise await _failure(request, url, response, call)
    if request.result == "status":
        return {"status": response.status}
    answer = await _read(response, MAX_RESULT_BYTES)
    value, problem = _json(answer)
    if problem is None:
        return value
    if request.result == "json":
        message = (
            f"{request.method} {url.origin} answered {answer.status}, and {problem}, which `result: json` requires"
        )
        raise BuiltinFailure(INVALID_RESULT, message, retryable=False)
    text, is_cut = _text(answer, MAX_TEXT, call.redact_values, call)
    return {"status": answer.status, "text": text, **({"is_cut": True} if is_cut else {})}


async def _failure(
    request: HttpRequest, url: HttpUrl, response: httpcore.Response, call: BuiltinCall
) -> BuiltinFailure:
    status = response.status
    answer = await _read(response, MAX_REASON + _MARGIN, within=_REASON_WITHIN_S)
    text, _ = _text(answer, MAX_REASON, call.redact, call)
    hint = "; redirects are not followed, so write the URL that it leads to" if 300 <= status < 400 else ""  # noqa: PLR2004
    message = f"{request.method} {url.origin} answered {status}{hint}" + (f":\n{text}" if text.strip() else "")
    can_retry = is_retryable(status)
    wait = retry_after(answer.headers) if can_retry else None
    return BuiltinFailure(f"http_status_{status}", message, retryable=can_retry, retry_after=wait, status=status)


async def _read(response: httpcore.Response, limit: int, *, within: float | None = None) -> _Answer:
    """Read the beginning of an answer, or the part that arrives `within` some seconds."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
    body, is_cut = bytearray(), True
    try:
        async with asyncio.timeout(within):
            async for chunk in response.aiter_stream():
                body += chunk[: limit + 1 - len(body)]
                if len(body) > limit:
                    break
            else:
                is_cut = False
    except (httpcore.NetworkError, httpcore.RemoteProtocolError, TimeoutError):
        if within is None:
            raise
    return _Answer(response.status, headers, bytes(body[:limit]), is_cut)


def _json(answer: _Answer) -> tuple[JsonValue, str | None]:
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if answer.is_cut:
        return None, f"has more than {MAX_RESULT_BYTES:,} bytes"
    if _is_compressed(answer):
        return None, "is compressed, although the request refuses it"
    if kind != "application/json" and not kind.endswith("+json"):
        return None, f"is {kind[:100] or 'of no type'} instead of JSON"
    try:
        value: JsonValue = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None, "is no JSON"
    if problem := json_problem(value):
        return None, f"has JSON that cannot be stored: {problem}"
    return (value, None) if size_of(value) <= MAX_RESULT_BYTES else (None, f"has more than {MAX_RESULT_BYTES:,} bytes")


def _text(answer: _Answer, limit: int, redact: Callable[[str], str], call: BuiltinCall) -> tuple[str, bool]:
    """Return the beginning of an answer as text without secrets, and whether more was there.

    `redact` is for a whole answer. Of a secret at the cut there may be some lines only.
    """
    if _is_compressed(answer):
        return "", bool(answer.body)
    size = limit + _MARGIN
    is_cut = answer.is_cut or len(answer.body) > size
    text = (call.redact if is_cut else redact)(storable(answer.body[:size].decode(errors="replace")))
    if is_cut:
        text = text[: max(0, len(text) - _MARGIN)]  # its end may be the beginning of a secret
    return text[:limit], is_cut or len(text) > limit


def _is_compressed(answer: _Answer) -> bool:
    return answer.headers.get("content-encoding", "identity").strip().lower() not in {"", "identity"}
