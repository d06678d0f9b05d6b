"""An installation as the HTTP API shows it, behind the same ports: what works on a log works on a server's URL.

What is read are the facts themselves, so that everything is folded and told here as it would be beside the log. What is
appended becomes the request that has the server append it; the guard travels as `If-Match`. Whatever has no request raises
`NotServed`.
"""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NoReturn
from uuid import uuid4

import httpx
from pydantic import JsonValue, TypeAdapter
from typing_extensions import override

from ... import subjects
from ...domain.definition import STORED, DefinitionError, DefinitionProblem, JobDefinition
from ...domain.errors import TocsinError
from ...domain.events import (
    Actor,
    Cancelled,
    Defined,
    Deleted,
    Due,
    Input,
    LedgerFact,
    Message,
    Paused,
    Recorded,
    Replayed,
    Resolved,
    Resumed,
    TriggerSource,
)
from ...domain.ledger import JobNotFound
from ...ports import (
    Batch,
    DeadLetterRow,
    ExecutionRow,
    Loaded,
    LogUnavailable,
    Projections,
    SequenceConflict,
)
from ...ports.queries import DeadLetterQuery, ExecutionQuery, Page
from ...services.jobs import Check, Registry, RequestName
from ...services.operations.errors import NotFound, OperationError
from ...subjects import Stream

PAGE: Final = 500
_EXECUTIONS: Final = TypeAdapter(list[ExecutionRow])
_DEAD_LETTERS: Final = TypeAdapter(list[DeadLetterRow])


class NotServed(TocsinError):
    """The HTTP API does not do this: it needs NATS itself."""

    code = "not-served-over-http"

    def __init__(self) -> None:
        super().__init__("this is not served over HTTP: leave --server out, and name the NATS server")


class NotPermitted(TocsinError):
    """The API does not let the caller do this; the text is its own."""

    code = "not-permitted"


@dataclass(frozen=True)
class Api:
    """The requests. `LogUnavailable` is raised where no answer comes."""

    http: httpx.AsyncClient

    async def ask(
        self,
        method: str,
        path: str,
        body: JsonValue = None,
        *,
        query: Mapping[str, str | int | bool] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:  # noqa: ANN401 - JSON
        """One request; its answer.

        Raises:
            DefinitionError, JobNotFound, NotFound, Refusal, SequenceConflict, NotPermitted: as the server says.
            LogUnavailable: no answer, or not now.
        """
        given = {name: value for name, value in (headers or {}).items() if value}
        try:
            answer = await self.http.request(method, path, json=body, params=query, headers=given)
        except httpx.HTTPError as error:
            raise LogUnavailable(f"{self.http.base_url}: {str(error) or type(error).__name__}") from error
        if answer.is_success:
            return answer.json() if answer.content else None
        raise _refusal(path, answer)


def _refusal(path: str, answer: httpx.Response) -> Exception:  # noqa: PLR0911 - one line an answer
    try:
        problem = json.loads(answer.content)
        kind, detail = problem["type"].rpartition(":")[2], problem["detail"]
    except (ValueError, KeyError, TypeError):
        return LogUnavailable(f"{answer.url}: {answer.status_code}, and no problem details: is this Tocsin's API?")
    match answer.status_code, kind:
        case 404, _ if path.startswith("/v1/jobs/"):
            return JobNotFound(path.split("/")[3])
        case 404, _:
            return NotFound(detail)
        case 412, _:
            return SequenceConflict(detail)
        case 422, "invalid-definition":
            return DefinitionError(*(_problem(error) for error in problem["errors"]))
        case ((401 | 403), _):
            return NotPermitted(detail)
        case ((429 | 500 | 503), _):
            return LogUnavailable(detail)
        case _:
            return OperationError(detail)


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


class RemoteLog:
    """As much of `ports.EventLog` as operators need."""

    def __init__(self, api: Api) -> None:
        """Over `api`."""
        self._api = api
        self._appended: dict[int, Recorded[Message]] = {}

    async def append(self, fact: Message, *, expect: int) -> int:
        """Have the server append a fact."""
        guard = {"If-Match": f'"{expect}"'} if expect else {"If-None-Match": "*"}
        reason = {"X-Reason": _ascii(getattr(fact, "reason", None))}
        match fact:
            case Defined():
                written = fact.definition.model_dump(mode="json", exclude_none=True)
                told = await self._api.ask("PUT", f"/v1/jobs/{fact.job}", written, headers=guard | reason)
                return int(told["sequence"])
            case Paused() | Resumed():
                verb = "pause" if isinstance(fact, Paused) else "resume"
                await self._api.ask("POST", f"/v1/jobs/{fact.job}/{verb}", {"reason": fact.reason}, headers=guard)
            case Deleted():
                await self._api.ask("DELETE", f"/v1/jobs/{fact.job}", headers=guard | reason)
            case Cancelled():
                path = f"/v1/executions/{fact.execution_id}/cancel"
                told = await self._api.ask("POST", path, {"reason": fact.reason})
                if not told["changed"]:
                    raise SequenceConflict(f"execution {fact.execution_id} was over before")
            case Replayed():
                body: JsonValue = {"input": fact.input, "again": True, "reason": fact.reason}
                headers = {"Idempotency-Key": fact.request or uuid4().hex}
                await self._api.ask("POST", f"/v1/dead-letters/{fact.id}/replay", body, headers=headers)
                return await self._newest(subjects.dead_letter(fact.job, fact.id))
            case Resolved():
                await self._api.ask("PATCH", f"/v1/dead-letters/{fact.id}", {"resolved": True, "reason": fact.reason})
            case _:
                raise NotServed
        return expect + 1

    async def load(self, scope: str, *, after: int = 0) -> list[Recorded[Message]]:
        """The facts of a job, an execution or a dead letter."""
        return [recorded for recorded in await self._load(scope) if recorded.sequence > after]

    async def _load(self, scope: str) -> list[Recorded[Message]]:
        kind, job, *rest = scope.split(".")
        match kind:
            case "ledger":
                try:
                    return _ledger(await self._api.ask("GET", f"/v1/jobs/{subjects.name(job)}"))
                except JobNotFound:
                    return []
            case "execution" | "dead-letter":
                try:
                    told = await self._api.ask("GET", f"/v1/{kind}s/{rest[0]}/events")
                except NotFound:
                    return []
                return [_recorded(fact) for fact in told["facts"]]
            case _:
                raise NotServed

    async def load_each(self, *scopes: str) -> Loaded:
        """The facts of several."""
        facts = [await self.load(scope) for scope in scopes]
        return Loaded(facts, max((one.sequence for some in facts for one in some), default=0))

    async def tail(self, scope: str) -> int:
        """The last sequence in a scope, as `load` tells it: the server has asked whoever knows."""
        facts = await self.load(scope)
        return facts[-1].sequence if facts else 0

    async def last(self, subject: str) -> Recorded[Message] | None:
        """The newest fact of an execution or a dead letter."""
        facts = await self.load(subject)
        return facts[-1] if facts else None

    async def get(self, stream: Stream, sequence: int) -> Recorded[Message] | None:
        """A fact that was appended here, or a definition."""
        if stream is Stream.LOG:
            return self._appended.get(sequence)
        try:
            return _recorded(await self._api.ask("GET", f"/v1/definitions/{sequence}"))
        except NotFound:
            return None

    async def follow(self, stream: Stream, *filters: str, after: int | None) -> AsyncGenerator[Batch, None]:
        """Every ledger, once."""
        if stream is not Stream.LEDGER or after is not None:
            raise NotServed
        _ = filters
        facts: list[Recorded[Message]] = []
        query: dict[str, str | int | bool] = {"details": True, "limit": PAGE}
        while True:
            told = await self._api.ask("GET", "/v1/jobs", query=query)
            facts += [fact for job in told["jobs"] for fact in _ledger(job)]
            if told["next"] is None:
                break
            query["after"] = told["next"]
        yield Batch(facts, caught_up=True, upto=0)

    async def now(self) -> datetime:
        """By this machine's clock."""
        return datetime.now(UTC)

    def __getattr__(self, name: str) -> NoReturn:
        """What else a log does is not served."""
        raise NotServed

    async def _newest(self, scope: str) -> int:
        newest = (await self.load(scope))[-1]
        self._appended[newest.sequence] = newest
        return newest.sequence


class RemoteRegistry(Registry):
    """The jobs of an installation, over its API."""

    def __init__(self, api: Api, log: RemoteLog, projections: Projections) -> None:
        """Over `api`."""
        super().__init__(log, projections)
        self._api = api

    @override
    async def trigger(
        self,
        job: str,
        input: Input | None = None,
        args: Sequence[JsonValue] | None = None,
        *,
        by: Actor | None = None,
        kind: TriggerSource = "manual",
        reason: str | None = None,
        asking: RequestName | None = None,
        check: Check | None = None,
    ) -> str:
        body: JsonValue = {
            "input": input,
            "args": None if args is None else list(args),
            "reason": reason,
            "trigger": "manual" if kind == "manual" else "api",
        }
        headers = {"Idempotency-Key": asking.name if asking else uuid4().hex}
        told = await self._api.ask("POST", f"/v1/jobs/{job}/trigger", body, headers=headers)
        return str(told["execution_id"])


class RemoteHistory:
    """As much of `ports.History` as its readers need."""

    def __init__(self, api: Api) -> None:
        """Over `api`."""
        self._api = api

    async def executions(self, query: ExecutionQuery = ExecutionQuery()) -> Page[ExecutionRow]:  # noqa: B008 - immutable
        """A page of the executions that a query asks for."""
        rows, cursor = await self._page("/v1/executions", "executions", query)
        return Page(_EXECUTIONS.validate_python(rows), cursor)

    async def execution(self, execution_id: str) -> ExecutionRow | None:
        """One execution."""
        found = (await self.executions(ExecutionQuery(id_prefix=execution_id, limit=1))).rows
        return found[0] if found else None

    def __getattr__(self, name: str) -> NoReturn:
        """What else a history does is not served."""
        raise NotServed

    async def dead_letters(self, query: DeadLetterQuery = DeadLetterQuery()) -> Page[DeadLetterRow]:  # noqa: B008 - immutable
        """A page of the dead letters that a query asks for."""
        rows, cursor = await self._page("/v1/dead-letters", "dead_letters", query)
        return Page(_DEAD_LETTERS.validate_python(rows), cursor)

    async def _page(
        self, path: str, name: str, query: ExecutionQuery | DeadLetterQuery
    ) -> tuple[list[Any], str | None]:
        fields = {field: getattr(query, field) for field in query.__slots__}
        asked = {
            field: value.isoformat() if isinstance(value, datetime) else value
            for field, value in fields.items()
            if value is not None
        }
        rows: list[Any] = []
        while True:  # a page of the server holds fewer rows than may be asked for here
            told = await self._api.ask("GET", path, query={**asked, "limit": min(PAGE, query.limit - len(rows))})
            rows += told[name]
            if told["next"] is None or len(rows) >= query.limit:
                return rows, told["next"]
            asked["cursor"] = told["next"]


def _ledger(job: Mapping[str, Any]) -> list[Recorded[Message]]:
    """Facts that fold to what the API tells of a job; under the sequence that is its version."""
    name, sequence = job["name"], int(job["sequence"])
    definition = JobDefinition.model_validate(job["definition"], context=STORED)
    created_at, defined_at = (datetime.fromisoformat(job[field]) for field in ("created_at", "defined_at"))
    defined = Defined(
        job=name, definition=definition, paused=job["paused"], created_at=created_at, created_by=job["created_by"]
    )
    facts: list[Recorded[Message]] = []
    if job["last_fire_time"] is not None:
        at = datetime.fromisoformat(job["last_fire_time"])
        facts.append(_as_stored(Due(job=name, scheduled_time=at, definition=sequence), 0, at))
    return [*facts, _as_stored(defined, sequence, defined_at)]


def _as_stored(fact: LedgerFact, sequence: int, at: datetime) -> Recorded[Message]:
    return Recorded(fact, subjects.subject_of(fact), sequence, at)


def _recorded(told: Mapping[str, Any]) -> Recorded[Message]:
    message = subjects.decode(told["subject"], json.dumps(told["fact"]).encode())
    return Recorded(message, told["subject"], told["sequence"], datetime.fromisoformat(told["time"]))


def _ascii(text: str | None) -> str:
    """A reason as a header can carry it."""
    return (text or "").encode("ascii", "replace").decode()
