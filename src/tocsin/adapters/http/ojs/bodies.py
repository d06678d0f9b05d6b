"""The bodies of the Open Job Spec's requests: one JSON object each, whatever media type it is sent under."""

import json
from typing import Annotated, Any, TypeAlias

from fastapi import Depends, Request

from ..api.problems import FieldError, Problem


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
