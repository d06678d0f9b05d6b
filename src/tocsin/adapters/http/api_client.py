"""Requests to the HTTP API, with the paths, answers and problems that they share."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

import httpx
from pydantic import JsonValue, TypeAdapter

from ... import subjects
from ...domain.definition import STORED, DefinitionError, DefinitionProblem, JobDefinition
from ...domain.events import Message, Recorded
from ...domain.ledger import JobNotFound, KnownDefinition, Ledger, Regime, Timetable
from ...domain.namespaces import WrongNamespaces
from ...domain.shard_map import WrongShardMap
from ...ports import ApiUnavailable, NotPermitted, SequenceConflict
from ...ports.queries import Page
from ...services.jobs import Job
from ...services.operations.errors import NotFound, OperationError

MAX_ANSWER_BYTES: Final = 536_870_912
"""Size of an answer: a page of jobs, each of the greatest size, is smaller."""
ANSWER_S: Final = 300.0
"""Time within which an answer has to be complete."""
PAGE_SIZE: Final = 500
"""Rows per request; the API returns at most 1,000."""
TIMEOUT_S: Final = 60.0
"""Time for each step of a request, such as the connection."""

T = TypeVar("T")


@dataclass(frozen=True)
class ApiClient:
    """Sends requests and turns problem details into the errors of the services."""

    http: httpx.AsyncClient

    async def request(
        self,
        method: str,
        path: str,
        body: JsonValue = None,
        *,
        query: Mapping[str, str | int | bool | Sequence[str]] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:  # noqa: ANN401 - JSON
        """Send a request and return the JSON of its response.

        Raises:
            DefinitionError, JobNotFound, NotFound, OperationError, SequenceConflict, NotPermitted: the API refused.
            ApiUnavailable: the API did not answer, or cannot reach its log.
        """
        present = {name: value for name, value in (headers or {}).items() if value}
        request = self.http.build_request(method, path, json=body, params=query, headers=present)
        try:
            async with asyncio.timeout(ANSWER_S):
                async with aclosing(await self.http.send(request, stream=True)) as response:
                    content = await _content_of(response)
        except (httpx.HTTPError, TimeoutError) as error:
            raise self._no_answer(error) from error
        if not response.is_success:
            raise _error_of(path, response, content)
        try:
            return json.loads(content) if content else None
        except (ValueError, RecursionError):
            raise _not_tocsin(response, "without JSON") from None

    async def listed(self, path: str, query: Mapping[str, bool] | None = None, *, position: str = "after") -> list[Any]:
        """Return the items of a list; `position`: the parameter that continues it."""
        items, _ = await self._pages(path, query or {}, position, sys.maxsize)
        return items

    async def page(self, kind: type[T], path: str, query: Mapping[str, str | int | bool], limit: int) -> Page[T]:
        """Return up to `limit` rows, from several pages of the API."""
        rows, cursor = await self._pages(path, query, "cursor", limit)
        return Page([read_as(kind, row) for row in rows], cursor)

    async def _pages(
        self, path: str, query: Mapping[str, str | int | bool], position: str, most: int
    ) -> tuple[list[Any], Any]:
        name = path.rpartition("/")[2].replace("-", "_")
        items: list[Any] = []
        while True:
            limit = min(PAGE_SIZE, most - len(items))
            page = await self.request("GET", path, query={**query, "limit": limit})
            items += page[name]
            if page["next"] is None or len(items) >= most:
                return items, page["next"]
            query = {**query, position: page["next"]}

    @asynccontextmanager
    async def stream(self, path: str, *, query: Mapping[str, str], silence_s: float) -> AsyncIterator[httpx.Response]:
        """Open an endless answer, lost after `silence_s` seconds without a byte; errors as `request`."""
        timeout = httpx.Timeout(self.http.timeout.connect, read=silence_s)
        request = self.http.build_request("GET", path, params=query, timeout=timeout)
        try:
            async with aclosing(await self.http.send(request, stream=True)) as response:
                if not response.is_success:
                    raise _error_of(path, response, await _content_of(response))
                yield response
        except httpx.HTTPError as error:
            raise self._no_answer(error) from error

    def _no_answer(self, error: httpx.HTTPError | TimeoutError) -> ApiUnavailable:
        reason = str(error).rstrip(".") or type(error).__name__
        return ApiUnavailable(
            f"no API answers at {self.http.base_url}: {reason}. Start `tocsin serve`, or use another URL"
        )


@asynccontextmanager
async def open_api(url: str, token: str | None) -> AsyncIterator[ApiClient]:
    """Yield a client of the API at `url`; it sends `token` as bearer token."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT_S) as http:
        yield ApiClient(http)


_adapter: Final[Callable[[Any], TypeAdapter[Any]]] = cache(TypeAdapter)


def read_as(kind: type[T], answer: object) -> T:
    """Return an answer, or a part of it, as a type."""
    value: T = _adapter(kind).validate_python(answer)
    return value


async def _content_of(response: httpx.Response) -> bytes:
    content = bytearray()
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > MAX_ANSWER_BYTES:
            raise _not_tocsin(response, f"more than {MAX_ANSWER_BYTES:,} bytes")
    return bytes(content)


def _not_tocsin(response: httpx.Response, answer: str) -> ApiUnavailable:
    return ApiUnavailable(
        f"{response.url} answers {response.status_code} {answer}, so it is not Tocsin's API. "
        "Name the URL of `tocsin serve` with --server"
    )


def _error_of(path: str, response: httpx.Response, content: bytes) -> Exception:  # noqa: PLR0911 - one line per problem
    try:
        problem = json.loads(content)
        kind, detail = problem["type"].rpartition(":")[2], problem["detail"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _not_tocsin(response, "without problem details")
    match response.status_code, kind:
        case 404, _ if path.startswith("/v1/jobs/"):
            return JobNotFound(unquote(path.split("/")[3]))
        case 404, _:
            return NotFound(detail)
        case 412, _:
            return SequenceConflict(detail)
        case 422, "invalid-definition":
            return DefinitionError(*(_problem(error) for error in problem["errors"]))
        case 422, "invalid-shard-map":
            return WrongShardMap(detail)
        case 422, "invalid-namespaces":
            return WrongNamespaces(detail)
        case ((401 | 403), _):
            return NotPermitted(detail)
        case ((429 | 500 | 503), _):
            return ApiUnavailable(f"the API at {response.url.copy_with(raw_path=b'/')} refuses: {detail}")
        case _:
            return OperationError(detail, code=kind)


def _problem(error: Mapping[str, str]) -> DefinitionProblem:
    right = error["right"]
    unknown = right.startswith("unknown field: ")
    reason = right.removeprefix("unknown field: ")
    return DefinitionProblem(
        (", " if reason.startswith("did you") else ": ") + reason if unknown else reason,
        field=error.get("field", ""),
        value=error.get("value"),
        job=error.get("job"),
        step=error.get("step"),
        unknown=unknown,
    )


def job_of(details: Mapping[str, Any]) -> Job:
    """Return a job whose ledger holds the definition in force and the last fire time."""
    name, sequence = details["name"], int(details["sequence"])
    definition = JobDefinition.model_validate(details["definition"], context=STORED)
    created_at, defined_at = (datetime.fromisoformat(details[field]) for field in ("created_at", "defined_at"))
    fired_at = datetime.fromisoformat(details["last_fire_time"]) if details["last_fire_time"] else None
    state = Ledger(
        job=name,
        regimes=(Regime(defined_at, sequence, details["paused"], fact=sequence, previous=0),),
        definitions={
            sequence: KnownDefinition(
                defined_at,
                Timetable.of(definition),
                definition,
                created_at,
                details["created_by"],
                datetime.fromisoformat(details["anchor"]),
            )
        },
        watermark=datetime.fromisoformat(details["decided_until"]) if details["decided_until"] else None,
        last_fired=fired_at,
    )
    return Job(definition, defined_at, sequence, state)


def recorded_of(fact: Mapping[str, Any]) -> Recorded[Message]:
    message = subjects.decode(fact["subject"], json.dumps(fact["fact"]).encode())
    return Recorded(message, fact["subject"], fact["sequence"], datetime.fromisoformat(fact["time"]))


def path_of(kind: str, name: str, *rest: str) -> str:
    """Return the path of a named thing, such as a job, or below it."""
    return "/".join(("/v1", kind, quote(name, safe=""), *rest))


def if_match(sequence: int) -> dict[str, str]:
    return {"If-Match": f'"{sequence}"'}


def reason_header(text: str | None) -> dict[str, str]:
    """Return the header that carries the reason for a change: any text, percent-encoded (RFC 8187)."""
    if not text:
        return {}
    return {"X-Reason": "UTF-8''" + quote(text, safe="", errors="surrogatepass")}
