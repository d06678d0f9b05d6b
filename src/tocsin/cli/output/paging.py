"""Lists that may be longer than anyone wants to read: a page of one, or all of it, and how to go on."""

import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeAlias, TypeVar

import typer

from ...ports.queries import MAX_LIMIT, USUAL_LIMIT, DeadLetterQuery, ExecutionQuery, Page, every
from ..runtime.errors import UsageError

T = TypeVar("T")
Query = TypeVar("Query", ExecutionQuery, DeadLetterQuery)

Job: TypeAlias = Annotated[str | None, typer.Option(help="Only of this job.")]
Error: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Only those whose last error contains this.")
]
Limit: TypeAlias = Annotated[
    int | None, typer.Option(min=1, max=MAX_LIMIT, show_default=str(USUAL_LIMIT), help="How many.")
]
Cursor: TypeAlias = Annotated[str | None, typer.Option(help="Go on where a list ended that named this.")]
All: TypeAlias = Annotated[bool, typer.Option("--all", help="All of them, however many.")]


async def rows_of(ask: Callable[[Query], Awaitable[Page[T]]], query: Query, *, is_all: bool) -> Page[T]:
    """The page that is asked for, or everything from there on."""
    if is_all:
        return Page([row async for row in every(ask, query)])
    return await ask(query)


def limit_of(limit: int | None, *, is_all: bool) -> int:
    """How many rows to ask for at once.

    Raises:
        UsageError: both a limit and all are asked for.
    """
    if is_all and limit is not None:
        raise UsageError("--all and --limit exclude each other", code="conflicting-options")
    return MAX_LIMIT if is_all else limit or USUAL_LIMIT


def tell_of_more(page: Page[T]) -> None:
    """Say how to go on, where there are more: beside the answer, which a program may be reading."""
    if page.cursor is not None:
        print(f"there are more: --cursor {page.cursor}, or --all", file=sys.stderr)
