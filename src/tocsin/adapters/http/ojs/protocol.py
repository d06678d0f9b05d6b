"""The wire format of the Open Job Spec (ojs-http-binding §4, §6).

This module has the media type, the version header, the request bodies and the error shape.

An error is `{error: {code, message, retryable, hint, docs_url, details, request_id}}`. `ERRORS` lists every code. An invalid
registration is `invalid_request` with 400 (ojs-cron §3.5); a body that is not JSON is `invalid_payload`.
"""

import json
import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeAlias
from uuid import uuid4

from fastapi import APIRouter, Depends, Path, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override

from ....domain.definition import show
from ....domain.errors import TocsinError
from ..api.problems import FieldError, Problem, problem_of
from ..middleware.idempotency import do_not_keep
from ..middleware.rate_limit import Allowance

MEDIA_TYPE: Final = "application/openjobspec+json"
PLAIN: Final = "application/json"
PREFIX: Final = "/ojs/"
VERSION: Final = "1.0"
_SUPPORTED_VERSION: Final = re.compile(r"1(\.0([.-].*)?)?")
"""A client may name the major version alone, a patch or a draft, such as `1.0.0-rc.1`."""
MANIFEST: Final = "/ojs/manifest"
"""Clients read there which versions are supported, so it answers requests of every version (§3.1)."""
DOCS: Final = "https://openjobspec.org/docs/errors#"
RETRY_AFTER: Final = "1"
"""Seconds after which a request is sent again that says nothing else (ojs-errors §5.1)."""
_RETRYABLE: Final = frozenset({429, 503})


@dataclass(frozen=True)
class ErrorCode:
    """The hint, the statuses and the problem kinds of an error code."""

    hint: str
    statuses: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    """Kinds that have this code with any status, and that keep status 422."""


ERRORS: Final[Mapping[str, ErrorCode]] = {
    "duplicate": ErrorCode("GET the existing job, or send another id if the id is taken", kinds=("duplicate",)),
    "invalid_request": ErrorCode(
        # An invalid retry policy is 422 (ojs-retry §11, the conformance suite), any other invalid field 400.
        "correct the fields that `details` names, and send it again",
        statuses=(400, 405, 408),
        kinds=("invalid-retry-policy",),
    ),
    "invalid_workflow": ErrorCode(
        "correct the field that `details` names, and send the workflow again", kinds=("invalid-workflow",)
    ),
    "invalid_payload": ErrorCode("send one JSON object", kinds=("malformed",)),
    "unsupported": ErrorCode("leave out what `details` names, or send what it says", kinds=("unsupported",)),
    "unauthorized": ErrorCode("send `Authorization: Bearer <token>`", statuses=(401,)),
    "forbidden": ErrorCode("request the role that this needs from an administrator", statuses=(403,)),
    "not_found": ErrorCode("GET the collection to see what exists", statuses=(404,)),
    "conflict": ErrorCode("read the current state, and decide again", statuses=(409, 412)),
    "not_expressible": ErrorCode("update the job at `/v1/jobs`, or register another name", kinds=("not-expressible",)),
    "batch_rejected": ErrorCode(
        "correct the jobs of the batch that failed, and send all of them again", kinds=("batch-rejected",)
    ),
    "batch_size_exceeded": ErrorCode(
        "send several requests, each with at most `max_batch_size` jobs", kinds=("batch-size-exceeded",)
    ),
    "envelope_too_large": ErrorCode("keep large data in a store, and send a reference to it", statuses=(413,)),
    "rate_limited": ErrorCode("wait as long as `Retry-After` says", statuses=(429,)),
    "matcher_unavailable": ErrorCode(
        "start a process with the stage `matcher`, and retry in a moment", kinds=("matcher-unavailable",)
    ),
    "too_many_fetches": ErrorCode("fetch less often, or retry in a moment", kinds=("too-many-fetches",)),
    "backend_error": ErrorCode("retry in a moment", statuses=(503,)),
    "internal_error": ErrorCode("read the log of the server for the cause"),
}
"""Every error code. `internal_error` is the code of all other statuses."""

_STATUS_OF_KIND: Final[Mapping[str, int]] = {"idempotency-key-reused": HTTPStatus.CONFLICT}
"""Kinds that have another status in the specification (ojs-bulk-operations §11.2)."""
_CODE_OF_KIND: Final = {kind: code for code, error in ERRORS.items() for kind in error.kinds}
_CODE_OF_STATUS: Final = {status: code for code, error in ERRORS.items() for status in error.statuses}


class OjsError(BaseModel, use_attribute_docstrings=True):
    """A failed request."""

    code: str
    type: str | None = None
    message: str
    retryable: bool
    hint: str
    docs_url: str
    request_id: str | None = None
    details: dict[str, Any] | None = None
    """`errors`: the invalid fields, each with its name, its value and the requirement."""


class OjsErrorAnswer(BaseModel):
    """The answer to a failed request."""

    error: OjsError


class OjsResponse(JSONResponse):
    """An answer in the media type of the specification."""

    media_type = MEDIA_TYPE

    @override
    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class OjsHeaders:
    """Add the headers of the version, of the request and of the caller's request rate.

    Clients that accept only plain JSON receive that. Answers of the server itself have these headers too, so this refuses nothing.
    """

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["path"].startswith(PREFIX):
            await self.app(scope, receive, send)
            return
        received = Headers(scope=scope)
        accepted = received.get("Accept", "")
        is_plain = PLAIN in accepted and MEDIA_TYPE not in accepted
        state = scope.setdefault("state", {})  # what the request says of itself
        state["request_id"] = received.get("X-Request-Id", "")[:128] or new_request_id()

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["OJS-Version"] = VERSION
                headers["X-Request-Id"] = state["request_id"]
                allowance: Allowance | None = state.get("allowance")  # ojs-rate-limiting §10.4
                if allowance is not None:
                    headers["X-RateLimit-Limit"] = str(allowance.limit)
                    headers["X-RateLimit-Remaining"] = str(allowance.left)
                    headers["X-RateLimit-Reset"] = str(math.ceil(time.time() + allowance.until_next))
                if is_plain and headers.get("Content-Type") == MEDIA_TYPE:
                    headers["Content-Type"] = PLAIN
            await send(message)

        await self.app(scope, receive, with_headers)


@dataclass(frozen=True, slots=True)
class OjsNegotiation:
    """Refuse unsupported versions and types of bodies. `OjsHeaders` must surround it."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_ojs = scope["path"].startswith(PREFIX)
        problem = _unsupported(scope["path"], Headers(scope=scope)) if is_ojs else None
        app = self.app if problem is None else as_response(problem, Request(scope))
        await app(scope, receive, send)


def new_request_id() -> str:
    """Return the id of a request to which the client gave none."""
    return f"req_{uuid4()}"


def _unsupported(path: str, headers: Headers) -> Problem | None:
    """Return the answer to an unsupported version (§3.2) or type of body (§4.1)."""
    version = headers.get("OJS-Version", "")
    if version and not _SUPPORTED_VERSION.fullmatch(version) and path != MANIFEST:
        wrong = FieldError(field="OJS-Version", value=show(version), right=f"must be {VERSION}, or absent")
        detail = f"version {wrong.value} is not supported. Send {VERSION}, or leave `OJS-Version` out"
        return Problem(422, "unsupported", detail, (wrong,), facts={"supported_versions": [VERSION]})
    media_type = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    has_body = headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in headers
    if has_body and media_type not in {"", MEDIA_TYPE, PLAIN}:
        return refused("Content-Type", f"must be {MEDIA_TYPE} or {PLAIN}", media_type)
    return None


def status_of(problem: Problem) -> int:
    """Return the status of a problem: invalid JSON and invalid fields are 400."""
    is_invalid = problem.status == HTTPStatus.UNPROCESSABLE_ENTITY and problem.kind not in _CODE_OF_KIND
    return _STATUS_OF_KIND.get(problem.kind) or (HTTPStatus.BAD_REQUEST if is_invalid else problem.status)


def error_code(problem: Problem) -> str:
    """Return the code of a problem, a key of `ERRORS`."""
    return _CODE_OF_KIND.get(problem.kind) or _CODE_OF_STATUS.get(status_of(problem), "internal_error")


def as_response(problem: Problem, request: Request) -> Response:
    """Return a problem in the error shape of the specification."""
    answer = OjsErrorAnswer(error=as_error(problem, request.state.request_id)).model_dump(exclude_none=True)
    status = status_of(problem)
    headers = {"Retry-After": RETRY_AFTER} | (problem.headers or {}) if status in _RETRYABLE else problem.headers
    return OjsResponse(answer, status, headers)


def as_error(problem: Problem, request_id: str | None = None) -> OjsError:
    """Return a problem as an error, of a part of a request without an id."""
    status, code = status_of(problem), error_code(problem)
    errors = [error.model_dump(exclude_none=True) for error in problem.errors]
    details = {**problem.facts, **({"errors": errors} if errors else {})}
    return OjsError(
        code=code,
        type="validation_error" if status in {400, 422} else None,
        message=problem.detail,
        retryable=is_retryable(problem),
        hint=ERRORS[code].hint,
        docs_url=DOCS + code,
        request_id=request_id,
        details=details or None,
    )


def is_retryable(problem: Problem) -> bool:
    """Return whether the same request may succeed later."""
    return status_of(problem) in _RETRYABLE


def not_kept_if_retryable(request: Request, *problems: Problem) -> None:
    """Store no answer for an `Idempotency-Key` if a part of the request may succeed later.

    The client is advised to send those again, and a kept answer would repeat their failure for a day.
    """
    if any(map(is_retryable, problems)):
        do_not_keep(request)


def changing(request: Request, change: Callable[[str], Awaitable[object]]) -> Callable[[str], Awaitable[object]]:
    """Return a change of one of several jobs, with `not_kept_if_retryable` for its failure."""

    async def changed(job_id: str) -> object:
        try:
            return await change(job_id)
        except TocsinError as error:
            not_kept_if_retryable(request, problem_of(error))
            raise

    return changed


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of the errors that an endpoint may answer with."""
    schema = {"schema": {"$ref": "#/components/schemas/OjsErrorAnswer"}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: schema, PLAIN: schema}}
        for status in statuses
    }


def ojs_router(prefix: str, *statuses: int, route_class: type[APIRoute] = APIRoute) -> APIRouter:
    """Return a router of endpoints, which may answer with `statuses` beside those of every endpoint."""
    return APIRouter(
        prefix=prefix,
        tags=["Open Job Spec"],
        default_response_class=OjsResponse,
        route_class=route_class,
        responses=documented(*sorted({400, 401, 403, 422, 429, 500, 503, *statuses})),
    )


Id: TypeAlias = Annotated[str, Path(alias="id")]
"""The id of a job or a workflow in a path."""


async def read_object(request: Request) -> dict[str, Any]:
    """Return the JSON object in a request's body, which is UTF-8 (§4.2)."""
    raw = await request.body()
    try:
        body = json.loads(raw.decode("utf-8-sig"), parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise _malformed(f"must be JSON: {error}") from None
    if not isinstance(body, dict):
        raise _malformed("must be a JSON object")
    return body


async def _optional_object(request: Request) -> dict[str, Any]:
    return await read_object(request) if await request.body() else {}


def _reject_constant(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def refused(field: str, right: str, given: object = None) -> Problem:
    """Return the answer to a wrong field; None: the field is absent, or null."""
    value = None if given is None else show(given)
    detail = f"`{field}` {right}" if value is None else f"`{field}` is {value}: it {right}"
    return Problem(400, "invalid-request", detail, (FieldError(field=field, value=value, right=right),))


def _malformed(requirement: str) -> Problem:
    return Problem(400, "malformed", f"the body {requirement}", (FieldError(field="body", right=requirement),))


Body: TypeAlias = Annotated[dict[str, Any], Depends(read_object)]
OptionalBody: TypeAlias = Annotated[dict[str, Any], Depends(_optional_object)]


def body_schema(*required: str, optional: bool = False, **properties: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON Schema
    """Return the OpenAPI description of a body that a handler reads with `Body`."""
    schema = {"type": "object", "properties": properties, "required": list(required)}
    content = {MEDIA_TYPE: {"schema": schema}, PLAIN: {"schema": schema}}
    return {"requestBody": {"required": not optional, "content": content}}
