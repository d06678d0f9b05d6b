"""Check the names of query parameters.

A request with an unknown name is rejected, so that no filter is silently ignored.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, get_args, get_type_hints

from fastapi import Request, params
from pydantic import BaseModel

from ....domain.definition import shorten, show
from ....domain.formats.document import listed, nearest
from .problems import FieldError, Problem

MAX_REPORTED: Final = 10
"""A request head has room for thousands of names."""


def check_query(request: Request) -> None:
    """Check that the endpoint of a request declares every query parameter.

    Raises:
        Problem: a name is unknown.
    """
    if not request.scope["query_string"]:
        return
    endpoint = request.scope.get("endpoint")
    known = parameters(endpoint) if endpoint is not None else ()
    unknown = [name for name in request.query_params if name not in known][:MAX_REPORTED]
    if not unknown:
        return
    errors = tuple(_error(name, request.query_params[name], known) for name in unknown)
    detail = "\n".join(f"query parameter `{error.field}`: {error.right}" for error in errors)
    raise Problem(422, "invalid-request", detail, errors)


@cache
def parameters(endpoint: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the query parameters that a handler declares, sorted.

    FastAPI's own list is not public, and its OpenAPI document takes seconds to generate.
    """
    names: set[str] = set()
    for name, hint in get_type_hints(endpoint, include_extras=True).items():
        query = next((data for data in getattr(hint, "__metadata__", ()) if isinstance(data, params.Query)), None)
        if query is None:
            continue
        model = get_args(hint)[0]
        is_model = isinstance(model, type) and issubclass(model, BaseModel)
        names |= set(model.model_fields) if is_model else {query.alias or name}
    return tuple(sorted(names))


def _error(name: str, value: str, known: tuple[str, ...]) -> FieldError:
    similar = nearest(name, known)
    if similar:
        hint = f"did you mean `{similar}`?"
    else:
        hint = f"the parameters here are {listed(known)}" if known else "there are none here"
    return FieldError(field=shorten(name), value=show(value), right=f"unknown query parameter; {hint}")
