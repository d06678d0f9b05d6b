"""The Open Job Spec's way to speak: its media type, its version header, and its error shape.

`{error: {code, message, retryable, hint, docs_url, details, request_id}}`; the codes are those of the OJS HTTP binding. What
is wrong with a registration is `invalid_request` and 400 (ojs-cron §3.5), a body that is no JSON `invalid_payload`.

The Open Job Spec's way to speak: its media type, its version header, and its error shape.

`{error: {code, message, retryable, hint, docs_url, details, request_id}}`; the codes are those of the OJS HTTP binding. What
is wrong with a registration is `invalid_request` and 400 (ojs-cron §3.5), a body that is no JSON `invalid_payload`.


The bodies of the Open Job Spec's requests: one JSON object each, whatever media type it is sent under.
"""

import json
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeAlias
from uuid import uuid4

from fastapi import Depends, Request
from pydantic import BaseModel, ConfigDict
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override

from ..api.problems import FieldError, Problem

MEDIA_TYPE: Final = "application/openjobspec+json"
PLAIN: Final = "application/json"
PREFIX: Final = "/ojs/"
VERSION: Final = "1.0"
DOCS: Final = "https://openjobspec.org/docs/errors#"

_CODES: Final = {
    400: "invalid_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "invalid_request",
    409: "conflict",
    412: "conflict",
    413: "envelope_too_large",
    415: "unsupported",
    429: "rate_limited",
    503: "backend_error",
}
_KINDS: Final = {"malformed": "invalid_payload", "invalid-retry-policy": "invalid_request", "duplicate": "duplicate"}
"""Refusals that have a code of their own; a retry policy that makes no sense is 422 (ojs-retry §11, the conformance suite)."""
_HINTS: Final = {
    "duplicate": "GET the job of that id, or send another id",
    "invalid_request": "correct the fields that `details` names, and send it again",
    "invalid_payload": "send one JSON object",
    "unauthorized": "send `Authorization: Bearer <token>`",
    "forbidden": "ask an administrator for the role that this needs",
    "not_found": "GET the collection to see what there is",
    "conflict": "read it anew, and decide again",
    "envelope_too_large": "keep large data in a store, and refer to it",
    "unsupported": f"send {MEDIA_TYPE} or {PLAIN}",
    "rate_limited": "wait as long as `Retry-After` says",
    "backend_error": "try again in a moment",
    "internal_error": "the log of the server says what happened",
}


class OjsError(BaseModel):
    """What went wrong."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    code: str
    type: str | None = None
    message: str
    retryable: bool
    hint: str
    docs_url: str
    request_id: str
    details: dict[str, Any] | None = None
    """`errors`: everything that is wrong with the request, each with its field, its value and what would be right."""


class OjsErrorAnswer(BaseModel):
    """An answer that is a refusal."""

    error: OjsError


class OjsResponse(JSONResponse):
    """An answer in the media type of the specification."""

    media_type = MEDIA_TYPE

    @override
    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


class OjsHeaders:
    """Has every answer name the version, and be of the media type that the client accepts."""

    def __init__(self, app: ASGIApp) -> None:
        """Around `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        accepted = Headers(scope=scope).get("Accept", "")
        is_plain = PLAIN in accepted and MEDIA_TYPE not in accepted

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["OJS-Version"] = VERSION
                if is_plain and headers.get("Content-Type") == MEDIA_TYPE:
                    headers["Content-Type"] = PLAIN
            await send(message)

        await self._app(scope, receive, told)


def as_response(refusal: Problem, request: Request) -> Response:
    """A refusal in the specification's shape."""
    # What cannot be used is one status there, whether it is the JSON or what it says.
    kept = refusal.kind in _KINDS and refusal.status == HTTPStatus.UNPROCESSABLE_ENTITY
    unusable = refusal.status == HTTPStatus.UNPROCESSABLE_ENTITY and not kept
    status = HTTPStatus.BAD_REQUEST if unusable else refusal.status
    code = _KINDS.get(refusal.kind) or _CODES.get(status, "internal_error")
    errors = [wrong.model_dump(exclude_none=True) for wrong in refusal.errors]
    error = OjsError(
        code=code,
        type="validation_error" if status in {400, 422} else None,
        message=refusal.detail,
        retryable=status in {429, 503},
        hint=_HINTS[code],
        docs_url=DOCS + code,
        request_id=request.headers.get("X-Request-Id", "")[:128] or f"req_{uuid4()}",
        details={"errors": errors} if errors else None,
    )
    answer = OjsErrorAnswer(error=error).model_dump(exclude_none=True)
    return OjsResponse(answer, status, dict(refusal.headers))


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals that an endpoint may answer with, for its documentation."""
    schema = {"schema": {"$ref": "#/components/schemas/OjsErrorAnswer"}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: schema, PLAIN: schema}}
        for status in statuses
    }


async def read_object(request: Request) -> dict[str, Any]:
    """The body of a request.

    Raises:
        Problem: it is no JSON object; or it holds a number that JSON does not have.
    """
    raw = await request.body()
    try:
        body = json.loads(raw, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise _malformed(f"must be JSON: {error}") from None
    if not isinstance(body, dict):
        raise _malformed("must be a JSON object")
    return body


async def _object_or_nothing(request: Request) -> dict[str, Any]:
    return await read_object(request) if await request.body() else {}


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is no JSON")


def _malformed(right: str) -> Problem:
    return Problem(400, "malformed", f"the body {right}", (FieldError(field="body", right=right),))


Body: TypeAlias = Annotated[dict[str, Any], Depends(read_object)]
OptionalBody: TypeAlias = Annotated[dict[str, Any], Depends(_object_or_nothing)]


def described(*required: str, optional: bool = False, **properties: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON Schema
    """What the OpenAPI document says of a body."""
    schema = {"type": "object", "properties": properties, "required": list(required)}
    content = {"application/openjobspec+json": {"schema": schema}, "application/json": {"schema": schema}}
    return {"requestBody": {"required": not optional, "content": content}}
