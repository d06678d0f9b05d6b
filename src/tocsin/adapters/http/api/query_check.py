"""Check the query parameters of a request.

A request with an unknown name is rejected, so that no filter is silently ignored. The answer lists the invalid values of known
parameters too; FastAPI would check these only later.
"""

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, get_args, get_origin, get_type_hints

from fastapi import Request, params
from pydantic import BaseModel, ValidationError, create_model
from starlette.datastructures import QueryParams

from ....domain.definition import shorten, show
from ....domain.formats.document import listed, nearest
from .problems import FieldError, Problem, as_line, input_error

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
    invalid = tuple(_invalid(_model(endpoint), request.query_params)) if endpoint is not None else ()
    raise Problem(422, "invalid-request", "\n".join([*lines, *map(as_line, invalid)]), (*unknown_errors, *invalid))


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
