"""Documents that hold one list of entries, such as a shard map."""

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from .definition import show

_MAX_PLACE: Final = 255
"""Characters of a place in an error."""
E = TypeVar("E")


def read_entries(
    document: object, field: str, key: str, entries: TypeAdapter[tuple[E, ...]], refuse: Callable[[str], Exception]
) -> tuple[E, ...]:
    """Return the entries in a document: a mapping with the list `field` and nothing else.

    Each entry is a mapping, or the text of its `key` alone.

    Raises:
        Exception: that of `refuse`: it is another document, or a field of an entry is wrong.
    """
    if not isinstance(document, Mapping) or document.keys() != {field} or not isinstance(document[field], list):
        raise refuse(f"the document must be a mapping with `{field}`, a list, and nothing else")
    given = [{key: entry} if isinstance(entry, str) else entry for entry in document[field]]
    try:
        return entries.validate_python(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, (field, *first["loc"])))
        raise refuse(f"{place[:_MAX_PLACE]}: {first['msg']}; it is {show(first['input'])}") from None
