"""Pages of the lists that are sorted by name (ojs-http-binding §17).

The cursor is the last name of a page. So a page continues correctly if jobs or queues come and go between two requests.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Final, TypeAlias, TypeVar

from fastapi import Query
from pydantic import BaseModel, ConfigDict

MAX_LIMIT: Final = 1_000
"""More than the 200 of the specification: a larger page is an extension."""
DEFAULT_LIMIT: Final = 50
_MAX_CURSOR_LENGTH: Final = 1_000
"""Longer than any name."""

Limit: TypeAlias = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Return this many at most.")]
Offset: TypeAlias = Annotated[
    int, Query(ge=0, le=1_000_000, description="Skip this many, from the cursor on if one is given.")
]
Cursor: TypeAlias = Annotated[
    str | None, Query(max_length=_MAX_CURSOR_LENGTH, description="Continue after a page: its `next_cursor`.")
]

T = TypeVar("T")


class PageInfo(BaseModel):
    """The place of a page in the list."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    total: int
    """The length of the whole list."""
    limit: int
    offset: int
    has_more: bool
    next_cursor: str | None
    """None: the list ends with this page."""


def page_of(
    items: Sequence[T], name_of: Callable[[T], str], *, limit: int, offset: int, cursor: str | None
) -> tuple[Sequence[T], PageInfo]:
    """Return a page of items that are sorted by name, and its place."""
    following = items if cursor is None else [item for item in items if name_of(item) > cursor]
    end = offset + limit
    page, has_more = following[offset:end], len(following) > end
    after = name_of(page[-1]) if has_more else None
    return page, PageInfo(total=len(items), limit=limit, offset=offset, has_more=has_more, next_cursor=after)
