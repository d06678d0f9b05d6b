"""What went wrong, as a client is told: RFC 9457 problem details, with the field, the value and what would be right.

`refusal_of` is the one table from exceptions to answers; which shape it is written in depends on who asks (`ojs_errors`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any, Final

import structlog
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ....domain.definition import DefinitionError, DefinitionProblem, show
from ....domain.ledger import JobNotFound
from ....domain.schedule import ScheduleError
from ....ports import HistoryUnavailable, LogUnavailable, NotAllowed, OutdatedState
from ....ports.queries import InvalidQuery
from ....services.operations import errors as refusals
from ....subjects import DecodeError
from ...extras import is_redis_error

MEDIA_TYPE: Final = "application/problem+json"

_log = structlog.get_logger("tocsin.http")


class FieldError(BaseModel):
    """One thing that is wrong with a request."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    field: str = ""
    """The field as the request spells it, dotted where it is nested; empty where the whole is meant."""
    value: str | None = None
    """What was given there, shortened."""
    right: str
    """What would be right."""
    job: str | None = None
    step: str | None = None


class ProblemDetails(BaseModel):
    """An answer that is a refusal (RFC 9457)."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    type: str
    """`urn:tocsin:problem:` and a name that does not change when the wording does."""
    title: str
    status: Annotated[int, Field(ge=400, le=599)]
    detail: str
    """The whole explanation, for people."""
    errors: list[FieldError] = []
    """Everything that is wrong with the request, where it is the request."""


@dataclass(frozen=True)
class Problem(Exception):
    """An answer that is a refusal. `kind` is its name for programs."""

    status: int
    kind: str
    detail: str
    errors: tuple[FieldError, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The kind, in words."""
        return self.kind.replace("-", " ")


def not_found(what: str, value: str) -> Problem:
    """There is no such thing, or none that the caller may know of."""
    return Problem(404, "not-found", f"no {what} is called {show(value)}")


def invalid(field_name: str, value: object, right: str) -> Problem:
    """A field of the request cannot be used."""
    wrong = FieldError(field=field_name, value=show(value), right=right)
    return Problem(422, "invalid-request", f"`{field_name}` is {wrong.value}: {right}", (wrong,))


def refusal_of(error: Exception) -> Problem:  # noqa: C901, PLR0911, PLR0912 - one line an exception is what this table is for
    """What to answer to an exception."""
    match error:
        case Problem():
            return error
        case DefinitionError():
            return Problem(422, "invalid-definition", str(error), tuple(_wrong(one) for one in error.problems))
        case ScheduleError():
            suggestion = f" (try: {error.suggestion})" if error.suggestion else ""
            wrong = FieldError(
                field="schedule", value=show(error.text) if error.text else None, right=error.problem + suggestion
            )
            return Problem(422, "invalid-schedule", str(error), (wrong,))
        case JobNotFound():
            return not_found("job", error.job)
        case refusals.NotFound():
            return Problem(404, "not-found", str(error))
        case refusals.NotAnId():
            return Problem(422, "invalid-request", str(error))
        case InvalidQuery():
            return Problem(422, "invalid-request", str(error), (FieldError(field=error.field, right=str(error)),))
        case refusals.OperationError():
            return Problem(409, "not-possible", str(error))
        case OutdatedState():
            return Problem(409, "conflict", str(error))
        case NotAllowed():
            return _unavailable(
                "the NATS user of this server may not do that: `tocsin permissions api` prints what it needs"
            )
        case LogUnavailable():
            return _unavailable("the log cannot be reached: nothing is known of what became of this request")
        case HistoryUnavailable() | SQLAlchemyError():
            return _unavailable("the history cannot be reached")
        case _ if is_redis_error(error):
            return _unavailable("the history cannot be reached")
        case DecodeError():
            return Problem(500, "unreadable", "the log holds what this version of Tocsin cannot read")
        case RequestValidationError():
            return _invalid(error)
        case HTTPException():
            return _of_status(error)
        case _:
            return Problem(500, "unforeseen", "something nobody foresaw; the log of this server says what")


def as_response(refusal: Problem) -> Response:
    """A refusal as problem details."""
    details = ProblemDetails(
        type=f"urn:tocsin:problem:{refusal.kind}",
        title=refusal.title,
        status=refusal.status,
        detail=refusal.detail,
        errors=list(refusal.errors),
    )
    # Escaped to ASCII: what was wrong with a text may be that it cannot be encoded.
    body = json.dumps(details.model_dump(exclude_none=True))
    return Response(body, refusal.status, dict(refusal.headers), MEDIA_TYPE)


def told(request: Request, error: Exception) -> Problem:
    """What to answer to an exception; what nobody foresaw is told to the log."""
    refusal = refusal_of(error)
    if refusal.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.error(
            "a request failed",
            action="request-failed",
            method=request.method,
            path=request.url.path,
            status=refusal.status,
            error=f"{type(error).__name__}: {error}",
            exc_info=error if refusal.kind == "unforeseen" else None,
        )
    return refusal


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals that an endpoint may answer with, for its documentation."""
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
        }
        for status in statuses
    }


def _wrong(problem: DefinitionProblem) -> FieldError:
    right = problem.reason.lstrip(", :") if problem.unknown else problem.reason
    return FieldError(
        field=problem.field,
        value=problem.value,
        right=f"unknown field: {right}" if problem.unknown else right,
        job=problem.job,
        step=problem.step,
    )


def _unavailable(detail: str) -> Problem:
    return Problem(503, "unavailable", detail, headers={"Retry-After": "1"})


def _of_status(error: HTTPException) -> Problem:
    phrase = HTTPStatus(error.status_code).phrase
    if error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return Problem(error.status_code, "too-large", error.detail)
    detail = error.detail if error.detail != phrase else phrase.lower()
    return Problem(error.status_code, phrase.lower().replace(" ", "-"), detail, headers=dict(error.headers or {}))


def _invalid(error: RequestValidationError) -> Problem:
    errors = tuple(_wrong_input(details) for details in error.errors())
    malformed = any(details["type"] == "json_invalid" for details in error.errors())
    lines = "\n".join(_line(wrong) for wrong in errors)
    return Problem(400 if malformed else 422, "malformed" if malformed else "invalid-request", lines, errors)


def _wrong_input(details: Mapping[str, Any]) -> FieldError:
    place, *path = (str(part) for part in details["loc"])
    if details["type"] == "json_invalid":
        return FieldError(
            field="body", right=f"must be JSON: {details.get('ctx', {}).get('error', 'it cannot be read')}"
        )
    if details["type"] == "missing":
        return FieldError(field=".".join(path) or place, right="required, and not given")
    cause = details.get("ctx", {}).get("error")
    right = (
        str(cause) if isinstance(cause, Exception) else details["msg"].removeprefix("Input ").replace("should", "must")
    )
    return FieldError(field=".".join(path) or place, value=show(details.get("input")), right=right)


def _line(wrong: FieldError) -> str:
    return (
        f"`{wrong.field}` is {wrong.value}: {wrong.right}"
        if wrong.value is not None
        else f"`{wrong.field}`: {wrong.right}"
    )
