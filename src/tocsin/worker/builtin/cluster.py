"""Requests to the API server of Kubernetes, by the official client.

An API server restarts, refuses floods and closes connections. So a request that another try may answer is repeated, for five
minutes at most. Objects are plain JSON: the models of the client would refuse what a newer server adds.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Self

import aiohttp
import yaml
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from ...domain.http_answer import retry_after
from ...domain.yaml_fault import fault_of
from ...settings.builtin import ContainerRules
from ..builtin_call import BuiltinFailure
from ..outcome import retry_delay

NOT_CONFIGURED: Final = "kubernetes_not_configured"
UNREACHABLE: Final = "kubernetes_unreachable"
MAX_REASON: Final = 1_024
"""Characters of an answer that an error message has."""
MAX_ANSWER: Final = 8_388_608
"""Bytes of an answer."""
PATIENCE_S: Final = 300.0
"""Seconds for which a request is repeated."""
_ANSWER_WITHIN_S: Final = 30.0
_CONNECT_WITHIN_S: Final = 10.0
_LONGEST_DELAY_S: Final = 30.0
"""The longest delay that an answer may ask for."""
_TRANSIENT: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_UNAUTHORIZED: Final = 401
_INVALID: Final = frozenset({400, 405, 413, 415, 422})
_ERROR: Final = 400
_CONFLICT: Final = 409
ALREADY_EXISTS: Final = "AlreadyExists"
NOT_FOUND: Final = 404
FORBIDDEN: Final = 403


class Refusal(BuiltinFailure):
    """The API server refused a request."""

    def __init__(self, what: str, status: int, answer: bytes, retry_after: float | None) -> None:
        """`what`: the request. `answer`: a `Status` of Kubernetes, or the page of a proxy."""
        said = _object(answer)
        self.status = status
        self.reason = str(said.get("reason") or "")
        text = str(said.get("message") or answer.decode(errors="replace")).strip()[:MAX_REASON]
        message = f"{what}: the API server answered {status} {self.reason}".rstrip() + (f": {text}" if text else "")
        super().__init__(
            f"kubernetes_status_{status}",
            message,
            retryable=status not in _INVALID,
            retry_after=retry_after,
            status=status,
        )

    @property
    def is_transient(self) -> bool:
        """Whether the same request may be answered soon."""
        return self.status in _TRANSIENT or (self.status == _CONFLICT and self.reason != ALREADY_EXISTS)


class Cluster:
    """An API server, as one attempt uses it."""

    def __init__(self, rules: ContainerRules, *, patience: float = PATIENCE_S) -> None:
        """Connect to nothing yet. `patience`: seconds for which a request is repeated."""
        self._rules = rules
        self._patience = patience
        self._client: Any = None

    async def __aenter__(self) -> Self:
        await self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            await self._client.close()

    async def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return an object, or a list of objects."""
        return await self._repeated("GET", path, query, None)

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object.

        The server refuses a field that it does not know, so that no rule is dropped in silence.
        """
        return await self._repeated("POST", path, {"fieldValidation": "Strict"}, body)

    async def delete(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Delete an object."""
        return await self._repeated("DELETE", path, {}, body)

    @asynccontextmanager
    async def stream(self, path: str, *, within: float | None, **query: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a request once, and yield the parts of its answer.

        `within`: seconds for all of them; None: unlimited.
        """
        try:
            timeout = aiohttp.ClientTimeout(total=within, sock_connect=_CONNECT_WITHIN_S)
            response = await self._send("GET", path, query, None, timeout)
            try:
                if response.status >= _ERROR:
                    raise await _refusal(f"GET {path}", response)
                yield response.content.iter_any()
            finally:
                response.close()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _unreachable(path, error) from None

    async def _connect(self) -> None:
        settings = Configuration()
        try:
            if self._rules.kubeconfig is None:
                config.load_incluster_config(client_configuration=settings)
            else:
                await config.load_kube_config(
                    config_file=self._rules.kubeconfig,
                    context=self._rules.context,
                    client_configuration=settings,
                    persist_config=False,
                )
            if not settings.verify_ssl:
                raise BuiltinFailure(
                    NOT_CONFIGURED,
                    "the kubeconfig says `insecure-skip-tls-verify`; name the authority of the API server instead",
                )
            client = ApiClient(settings)
        except (config.ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, KeyError) as error:
            reason = f"not YAML, {fault_of(error)}" if isinstance(error, yaml.YAMLError) else error
            message = f"the API server of Kubernetes is not known: {reason}; set `builtin.container.kubeconfig`"
            raise BuiltinFailure(NOT_CONFIGURED, message) from None
        client.user_agent = "tocsin"
        former, self._client = self._client, client  # a log that is read meanwhile must not meet a closed client
        if former is not None:
            await former.close()

    async def _repeated(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Send a request until it is answered."""
        loop, failures, is_renewed = asyncio.get_running_loop(), 0, False
        end = loop.time() + self._patience
        while True:
            try:
                return await self._answer(method, path, query, body)
            except Refusal as refusal:
                if refusal.status == _UNAUTHORIZED and not is_renewed:
                    is_renewed = True  # a token that expired is read again
                    await self._connect()
                    continue
                if not refusal.is_transient:
                    raise
                failure: BuiltinFailure = refusal
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                failure = _unreachable(path, error)
                if isinstance(error, aiohttp.ClientSSLError):
                    raise failure from None
            failures += 1
            delay = max(retry_delay(failures), min(failure.retry_after or 0.0, _LONGEST_DELAY_S))
            if loop.time() + delay > end:
                raise failure
            await asyncio.sleep(delay)

    async def _answer(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=_ANSWER_WITHIN_S, sock_connect=_CONNECT_WITHIN_S)
        response = await self._send(method, path, query, body, timeout)
        try:
            if response.status >= _ERROR:
                raise await _refusal(f"{method} {path}", response)
            answer = await _read(response, MAX_ANSWER)
        finally:
            response.close()
        if not (found := _object(answer)):
            raise aiohttp.ClientPayloadError("the answer is no JSON object")
        return found

    async def _send(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None, within: object
    ) -> Any:  # noqa: ANN401 - a response of aiohttp
        request = await self._client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json, */*", "Content-Type": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
        )
        return (await self._client.call_api(*request, _request_timeout=within)).response


def missing_configuration(rules: ContainerRules, environment: Mapping[str, str]) -> str | None:
    """Return why this process cannot know its API server; None: it can."""
    if rules.kubeconfig is None:
        if environment.get("KUBERNETES_SERVICE_HOST"):
            return None
        return "required for `--builtin container` outside a cluster, and not given: name the kubeconfig"
    return None if Path(rules.kubeconfig).is_file() else f"no file {rules.kubeconfig}"


async def _refusal(what: str, response: Any) -> Refusal:  # noqa: ANN401
    answer = await _read(response, MAX_REASON * 16, cut=True)
    return Refusal(what, response.status, answer, retry_after(response.headers))


async def _read(response: Any, limit: int, *, cut: bool = False) -> bytes:  # noqa: ANN401
    parts, size = list[bytes](), 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > limit:
            if cut:
                break
            raise aiohttp.ClientPayloadError(f"the answer has more than {limit:,} bytes")
    return b"".join(parts)


def _object(answer: bytes) -> dict[str, Any]:
    """Return the object of an answer; empty if the answer has another form."""
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _unreachable(path: str, error: Exception) -> BuiltinFailure:
    return BuiltinFailure(UNREACHABLE, f"{path}: {str(error)[:MAX_REASON] or type(error).__name__}")
