"""Check an object against the API of Kubernetes, as its official client has it."""

import re
from collections.abc import Iterator
from typing import Any, Final

from kubernetes import client

_SCALARS: Final[dict[str, tuple[type, ...]]] = {
    "str": (str,),
    "bytes": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (int, float),
    "object": (object,),
    "IntOrString": (int, str),
    "V1IntOrString": (int, str),
}


def problems(document: dict[str, Any]) -> list[str]:
    """Return the fields that the API does not have, that it requires, and that have another type."""
    group, _, version = document["apiVersion"].rpartition("/")
    kind = f"{version.title()}{document['kind']}"
    assert group.partition(".")[0] in {"", "apps", "batch", "policy", "networking", "rbac"}, document["apiVersion"]
    return list(_object(document, kind, document["kind"]))


def _object(value: object, kind: str, path: str) -> Iterator[str]:
    model = getattr(client, kind)
    if not isinstance(value, dict):
        yield f"{path}: {value!r} is no {kind}"
        return
    types = {model.attribute_map[name]: of for name, of in model.openapi_types.items()}
    for name, field in value.items():
        if name not in types:
            yield f"{path}.{name}: {kind} has no such field"
        else:
            yield from _value(field, types[name], f"{path}.{name}")
    known = {python: value.get(wire) for python, wire in model.attribute_map.items()}
    try:
        model(**{python: field for python, field in known.items() if field is not None})
    except ValueError as error:  # a required field is absent, or a value is not among those allowed
        yield f"{path}: {error}"


def _value(value: object, kind: str, path: str) -> Iterator[str]:
    if listed := re.fullmatch(r"[Ll]ist\[(.+)\]", kind):
        if not isinstance(value, list):
            yield f"{path}: {value!r} is no list"
            return
        for number, item in enumerate(value):
            yield from _value(item, listed[1], f"{path}[{number}]")
    elif mapped := re.fullmatch(r"[Dd]ict[\[(]str, (.+)[\])]", kind):
        if not isinstance(value, dict):
            yield f"{path}: {value!r} is no mapping"
            return
        for name, item in value.items():
            yield from _value(item, mapped[1], f"{path}.{name}")
    elif kind in _SCALARS:
        if not isinstance(value, _SCALARS[kind]) or (kind == "int" and isinstance(value, bool)):
            yield f"{path}: {value!r} is no {kind}"
    else:
        yield from _object(value, kind, path)
