"""Problems: the answers to failed requests as RFC 9457 problem details."""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Final, get_args, get_origin, get_type_hints

from fastapi import Request, params
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, JsonValue, ValidationError, create_model
from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.responses import Response

from .... import telemetry
from ....domain.definition import MAX_PROBLEMS, DefinitionError, DefinitionProblem, shorten, show
from ....domain.errors import TocsinError
from ....domain.formats.document import listed, nearest
from ....domain.ledger import JobNotFound
from ....domain.namespaces import WrongNamespaces
from ....domain.schedule import ScheduleError
from ....domain.shard_map import WrongShardMap
from ....domain.statement_error import StatementError
from ....ports import HistoryUnavailable, LogUnavailable, NotAllowed, OutdatedState
from ....ports.queries import InvalidQuery
from ....services.calculations import ServerBusy
from ....services.daily_room import DailyQuotaUsed
from ....services.event_feeds import TooManyReaders
from ....services.operations import errors as of_operations
from ....subjects import DecodeError
from ...extras import is_redis_error

MEDIA_TYPE: Final = "application/problem+json"

_log = telemetry.get_logger("tocsin.http")


@dataclass(frozen=True)
class ProblemKind:
    """The status, the explanation and the exceptions of a kind of problem."""

    status: int
    explanation: str
    exceptions: tuple[type[Exception], ...] = ()


PROBLEMS: Final[Mapping[str, ProblemKind]] = {
    "bad-request": ProblemKind(400, "The request cannot be read. Check its encoding and its headers."),
    "malformed": ProblemKind(400, "The body is not JSON. Send one JSON document."),
    "unauthenticated": ProblemKind(401, "The token is missing or not accepted. Send `Authorization: Bearer <token>`."),
    "webhook-refused": ProblemKind(
        401, "No webhook has this path, or the signature is wrong. Compare the path and the secret with the sender's."
    ),
    "forbidden": ProblemKind(
        403, "The caller lacks a role or is not the job's owner. Ask an administrator for the role."
    ),
    "outside-namespace": ProblemKind(
        403, "The token is bound to namespaces, and the request is about a name outside them. The detail says which."
    ),
    "csrf-token": ProblemKind(
        403,
        "The request of a browser's session lacks the CSRF token of the session. Send `X-CSRF-Token` as `GET /console/session` gives it.",
    ),
    "not-found": ProblemKind(
        404,
        "The resource does not exist, or the caller is not permitted to see it. List the collection to find it.",
        (JobNotFound, of_operations.NotFound),
    ),
    "method-not-allowed": ProblemKind(405, "The path exists without this method. Read the `Allow` header."),
    "conflict": ProblemKind(409, "Another request changed the same state. Read it again and retry.", (OutdatedState,)),
    "duplicate": ProblemKind(409, "A job with this id, or with its unique key, was enqueued before. Read that job."),
    "exists": ProblemKind(409, "Another job has this name. Update it with PUT."),
    "in-progress": ProblemKind(409, "The first request with this idempotency key is still running. Retry later."),
    "ambiguous-id": ProblemKind(
        409,
        "Several resources have this id, or ids that begin with it. Name the job, or the complete id.",
        (of_operations.Ambiguous,),
    ),
    "not-possible": ProblemKind(
        409, "The current state does not allow the operation. The detail says why.", (of_operations.OperationError,)
    ),
    "queue-not-matched": ProblemKind(
        409, "Workers over HTTP cannot take the tasks of a queue whose transport is `mq`. Name another queue."
    ),
    "not-expressible": ProblemKind(
        409,
        "An Open Job Spec registration would replace a job that a CronJob cannot express. Update it at `/v1/jobs`, or register "
        "another name.",
    ),
    "precondition-failed": ProblemKind(412, "The resource has another version than `If-Match` expects. Read it again."),
    "too-large": ProblemKind(
        413,
        "The body or a field is larger than the server accepts. Send less.",
        (of_operations.ResultTooLarge, of_operations.FetchTooLarge, of_operations.JobTooLarge),
    ),
    "batch-size-exceeded": ProblemKind(
        413, "The request has more jobs than the server accepts at once. Send several requests."
    ),
    "batch-rejected": ProblemKind(
        422, "Another job of the batch is invalid, so this job was not enqueued either. Correct that job."
    ),
    "unsupported-media-type": ProblemKind(415, "The body of a request to a webhook is not JSON. Send JSON."),
    "idempotency-key-reused": ProblemKind(422, "The idempotency key belongs to another request. Send a new key."),
    "invalid-definition": ProblemKind(
        422,
        "The job definition, or the input of a trigger, is invalid. Correct the fields that `errors` names.",
        (DefinitionError,),
    ),
    "invalid-request": ProblemKind(
        422,
        "A field of the request is invalid. Correct the fields that `errors` names. Paths of the Open Job Spec answer 400.",
        (RequestValidationError, InvalidQuery, of_operations.InvalidResult, of_operations.NotAnId),
    ),
    "invalid-statement": ProblemKind(
        422,
        "The SQL cannot be read. The detail has the line, the column, and what is allowed there.",
        (StatementError,),
    ),
    "invalid-retry-policy": ProblemKind(422, "The retry policy of a pushed job is invalid. Correct the named field."),
    "invalid-workflow": ProblemKind(
        400, "A workflow of the Open Job Spec is invalid. Correct the field that `errors` names."
    ),
    "invalid-schedule": ProblemKind(
        422, "The schedule cannot be parsed. Try it with `POST /v1/explain`.", (ScheduleError,)
    ),
    "invalid-namespaces": ProblemKind(
        422, "The namespaces cannot be declared. Correct the namespace that the detail names.", (WrongNamespaces,)
    ),
    "invalid-shard-map": ProblemKind(
        422, "The shard map cannot be applied. Correct the shard that the detail names.", (WrongShardMap,)
    ),
    "unsupported": ProblemKind(
        422,
        "The server does not support the requested version, or an option, of the Open Job Spec. Leave out what `errors` names.",
    ),
    "too-many-requests": ProblemKind(429, "The caller exceeds its request rate. Wait as long as `Retry-After` says."),
    "namespace-quota": ProblemKind(
        429,
        "The namespace has used up a quota of the day. Wait as long as `Retry-After` says, or let an administrator raise the quota.",
    ),
    "unforeseen": ProblemKind(500, "An unexpected error. The log of the server has the traceback."),
    "unreadable": ProblemKind(
        500, "The log holds a message that this version cannot read. Upgrade the server.", (DecodeError,)
    ),
    "timeout": ProblemKind(
        503,
        "The request took too long. Retry a GET; the outcome of a change is unknown, so read the state before you retry.",
    ),
    "busy": ProblemKind(
        503,
        "Too many calculations, statements with `SELECT`, searches for events or replays of the past wait already, of the caller and its namespaces or of all. Retry after `Retry-After` seconds.",
        (ServerBusy,),
    ),
    "matcher-unavailable": ProblemKind(
        503,
        "No process with the stage `matcher` gives tasks to workers. Start it, and retry after `Retry-After` seconds.",
        (of_operations.MatcherUnavailable,),
    ),
    "too-many-fetches": ProblemKind(
        503,
        "As many fetches as the matcher allows wait for tasks. Retry after `Retry-After` seconds.",
        (of_operations.TooManyFetches,),
    ),
    "too-many-readers": ProblemKind(
        503,
        "As many clients, or streams of this identity, as the server allows follow events. Close some, or retry later.",
        (TooManyReaders,),
    ),
    "too-many-connections": ProblemKind(
        503,
        "The server, or this client at the server, has too many connections with running requests. Close some, or retry later.",
    ),
    "unavailable": ProblemKind(
        503,
        "The log, the history or the identity provider cannot be reached. Retry after `Retry-After` seconds.",
        (LogUnavailable, HistoryUnavailable, SQLAlchemyError),
    ),
}
"""Every kind of problem, by its stable name: `urn:tocsin:problem:<kind>`."""

_KIND_OF: Final = {cls: kind for kind, problem in PROBLEMS.items() for cls in problem.exceptions}
_RETRIED: Final = frozenset({"busy", "matcher-unavailable", "too-many-fetches", "too-many-readers", "unavailable"})
_HISTORY_UNAVAILABLE: Final = "The history cannot be reached. Retry later."
_DETAILS: Final[Mapping[type[Exception], str]] = {
    NotAllowed: "The NATS user of this server lacks a permission. Compare it with `tocsin permissions api`.",
    LogUnavailable: "The log cannot be reached, and the outcome of this request is unknown. Read the state, then retry.",
    HistoryUnavailable: _HISTORY_UNAVAILABLE,
    SQLAlchemyError: _HISTORY_UNAVAILABLE,
    DecodeError: "The log holds a message that this version of Tocsin cannot read. Upgrade the server.",
}
"""Details of exceptions whose own text may hold what only the operator should see."""


class FieldError(BaseModel, use_attribute_docstrings=True):
    """An invalid field of a request."""

    field: str = ""
    """The field as the request spells it, with dots if it is nested; empty: the request as a whole."""
    value: str | None = None
    """The given value, shortened."""
    right: str
    """The requirement."""
    job: str | None = None
    step: str | None = None


class ProblemDetails(BaseModel, use_attribute_docstrings=True):
    """The answer to a failed request (RFC 9457)."""

    type: str
    """`urn:tocsin:problem:` and a stable kind."""
    title: str
    status: Annotated[int, Field(ge=400, le=599)]
    detail: str
    """The explanation for people."""
    errors: list[FieldError] = []
    """Every invalid field, if the request is invalid."""


class Problem(TocsinError):
    """A failed request with its answer; `kind`: a key of `PROBLEMS`, also the `code`."""

    is_momentary: ClassVar[bool] = False
    """A request with the same `Idempotency-Key` is handled again at once, and may find the effect of this request."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        errors: tuple[FieldError, ...] = (),
        headers: Mapping[str, str] | None = None,
        facts: Mapping[str, JsonValue] | None = None,
    ) -> None:
        """`facts`: the `details` of the Open Job Spec."""
        super().__init__(detail)
        self.status = status
        self.kind = self.code = kind
        self.detail = detail
        self.errors = errors
        self.headers = dict(headers or {})
        self.facts = dict(facts or {})


def not_found(resource: str, name: str) -> Problem:
    """Return the answer to a name that is unknown or hidden from the caller."""
    return Problem(404, "not-found", f"no {resource} is called {show(name)}")


def invalid(field_name: str, value: object, requirement: str) -> Problem:
    error = FieldError(field=field_name, value=show(value), right=requirement)
    return Problem(422, "invalid-request", f"`{field_name}` is {error.value}: {requirement}", (error,))


def problem_of(error: Exception) -> Problem:  # noqa: PLR0911 - one line per exception with fields
    match error:
        case Problem():
            return error
        case DefinitionError():
            return Problem(422, "invalid-definition", str(error), tuple(map(_definition_error, error.problems)))
        case ScheduleError():
            suggestion = f" (try: {error.suggestion})" if error.suggestion else ""
            value = show(error.text) if error.text else None
            wrong = FieldError(field="schedule", value=value, right=error.problem + suggestion)
            return Problem(422, "invalid-schedule", str(error), (wrong,))
        case JobNotFound():
            return not_found("job", error.job)
        case InvalidQuery():
            return invalid(error.field, error.value, error.reason)
        case RequestValidationError():
            return _validation_problem(error)
        case HTTPException():
            return _status_problem(error)
        case DailyQuotaUsed():
            return Problem(429, "namespace-quota", str(error), headers={"Retry-After": str(error.retry_after_s)})
        case _:
            return _known_problem(error)


def as_response(problem: Problem) -> Response:
    details = ProblemDetails(
        type=f"urn:tocsin:problem:{problem.kind}",
        title=problem.kind.replace("-", " "),
        status=problem.status,
        detail=problem.detail,
        errors=list(problem.errors),
    )
    # Escaped to ASCII, because an invalid value may be text that UTF-8 cannot encode.
    body = json.dumps(details.model_dump(exclude_none=True))
    return Response(body, problem.status, problem.headers, MEDIA_TYPE)


def log_and_answer(request: Request, error: Exception) -> Problem:
    """Return the answer to an exception, and log it if the server failed."""
    problem = problem_of(error)
    if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.error(
            "request failed",
            action="request-failed",
            method=request.method,
            path=request.url.path,
            status=problem.status,
            error=f"{type(error).__name__}: {error}",
            exc_info=error if problem.kind == "unforeseen" else None,
        )
    return problem


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of the problems that an endpoint may answer with."""
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
        }
        for status in statuses
    }


def _known_problem(error: Exception) -> Problem:
    """Return the problem of the nearest class in `PROBLEMS`."""
    if is_redis_error(error):
        error = HistoryUnavailable()
    ancestors = type(error).__mro__
    kind = next((_KIND_OF[cls] for cls in ancestors if cls in _KIND_OF), None)
    if kind is None:
        return Problem(500, "unforeseen", "An unexpected error. The log of this server has the traceback.")
    detail = next((_DETAILS[cls] for cls in ancestors if cls in _DETAILS), None) or str(error)
    headers = {"Retry-After": "1"} if kind in _RETRIED else None
    return Problem(PROBLEMS[kind].status, kind, detail, headers=headers)


def _definition_error(problem: DefinitionProblem) -> FieldError:
    reason = problem.reason.lstrip(", :") if problem.unknown else problem.reason
    return FieldError(
        field=problem.field,
        value=problem.value,
        right=f"unknown field: {reason}" if problem.unknown else reason,
        job=problem.job,
        step=problem.step,
    )


def _status_problem(error: HTTPException) -> Problem:
    """Return the problem of an exception that the framework or `BodyLimit` raised."""
    phrase = HTTPStatus(error.status_code).phrase
    if error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return Problem(error.status_code, "too-large", error.detail)
    detail = error.detail if error.detail != phrase else phrase.lower()
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and (methods := (error.headers or {}).get("Allow")):
        detail = f"this path has no such method: use {methods}"
    return Problem(error.status_code, phrase.lower().replace(" ", "-"), detail, headers=error.headers)


def _validation_problem(error: RequestValidationError) -> Problem:
    found = error.errors()
    errors = tuple(map(input_error, found[:MAX_PROBLEMS]))
    is_malformed = any(details["type"] == "json_invalid" for details in found)
    kind = "malformed" if is_malformed else "invalid-request"
    return Problem(PROBLEMS[kind].status, kind, "\n".join(map(as_line, errors)), errors)


def input_error(details: Mapping[str, Any]) -> FieldError:
    """Return the error of a field from an error of pydantic."""
    place, *path = (shorten(str(part)) for part in details["loc"])
    if details["type"] == "json_invalid":
        reason = details.get("ctx", {}).get("error", "it cannot be parsed")
        return FieldError(field="body", right=f"must be JSON: {reason}")
    if details["type"] == "missing":
        return FieldError(field=".".join(path) or place, right="required, and not given")
    if details["type"] == "extra_forbidden":
        return FieldError(field=".".join(path) or place, right="unknown field: leave it out, or correct its name")
    if details["type"] in {"model_type", "model_attributes_type", "dict_type"} and not path:
        value = details.get("input")
        text = value.decode(errors="replace") if isinstance(value, bytes) else value
        requirement = "must be a JSON object, sent with `Content-Type: application/json`"
        return FieldError(field=place, value=show(text), right=requirement)
    cause = details.get("ctx", {}).get("error")
    message = details["msg"].removeprefix("Input ").replace("should", "must")
    requirement = str(cause) if isinstance(cause, Exception) else message
    return FieldError(field=".".join(path) or place, value=show(details.get("input")), right=requirement)


def as_line(error: FieldError) -> str:
    value = f" is {error.value}" if error.value is not None else ""
    return f"`{error.field}`{value}: {error.right}"


# A request with an unknown query parameter is rejected, so that no filter is silently ignored. The answer lists the invalid values of
# known parameters too; FastAPI would check these only later.

MAX_REPORTED: Final = 10
"""A request head has room for thousands of names."""


def check_query(request: Request) -> None:
    """Check that the endpoint of a request declares every query parameter."""
    if not request.scope["query_string"]:
        return
    endpoint = request.scope.get("endpoint")
    known = parameters(endpoint) if endpoint is not None else ()
    unknown = [name for name in request.query_params if name not in known][:MAX_REPORTED]
    if not unknown:
        return
    unknown_errors = tuple(_error(name, request.query_params[name], known) for name in unknown)
    lines = [f"query parameter `{error.field}`: {error.right}" for error in unknown_errors]
    wrong = tuple(_invalid(_model(endpoint), request.query_params)) if endpoint is not None else ()
    raise Problem(422, "invalid-request", "\n".join([*lines, *map(as_line, wrong)]), (*unknown_errors, *wrong))


@cache
def parameters(endpoint: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the query parameters that a handler declares, sorted.

    FastAPI's own list is not public, and its OpenAPI document takes seconds to generate.
    """
    return tuple(sorted(_model(endpoint).model_fields))


@cache
def _model(endpoint: Callable[..., Any]) -> type[BaseModel]:
    """Return a model of the query parameters that a handler declares, each with its limits."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(endpoint).parameters.items()}
    fields = dict[str, Any]()
    for name, hint in get_type_hints(endpoint, include_extras=True).items():
        query = next((data for data in getattr(hint, "__metadata__", ()) if isinstance(data, params.Query)), None)
        if query is None:
            continue
        kind = get_args(hint)[0]
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            fields.update({key: (field.annotation, field) for key, field in kind.model_fields.items()})
        else:
            is_required = defaults[name] is inspect.Parameter.empty
            fields[query.alias or name] = (hint, ... if is_required else defaults[name])
    return create_model("Query", **fields)


def _invalid(model: type[BaseModel], query: QueryParams) -> Iterator[FieldError]:
    values = {
        name: query.getlist(name)
        if any(get_origin(part) is list for part in (field.annotation, *get_args(field.annotation)))
        else query[name]
        for name, field in model.model_fields.items()
        if name in query
    }
    try:
        model.model_validate(values)
    except ValidationError as error:
        for details in error.errors():
            yield input_error({**details, "loc": ("query", *details["loc"])})


def _error(name: str, value: str, known: tuple[str, ...]) -> FieldError:
    similar = nearest(name, known)
    if similar:
        hint = f"did you mean `{similar}`?"
    else:
        hint = f"the parameters here are {listed(known)}" if known else "there are none here"
    return FieldError(field=shorten(name), value=show(value), right=f"unknown query parameter; {hint}")
