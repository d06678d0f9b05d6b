"""Pages, confirmations and the router of the admin API (ojs-admin-api §4)."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from fastapi import APIRouter, Query

from .....services.operations.event_waiter import EXECUTIONS
from ...api.dependencies import Components
from ..batches import BulkRoute
from ..fresh_history import catches_up
from ..protocol import OjsResponse, documented, refused

PREFIX: Final = "/ojs/v1/admin"
CATCH_UP_PAUSES_S: Final = (0.01, 0.02, 0.04, 0.08)
"""Pauses between looks whether the history has what was stored before a request. Then the answer is a moment old."""

Page: TypeAlias = Annotated[int, Query(ge=1, le=10_000, description="The page, counted from 1.")]
PerPage: TypeAlias = Annotated[int, Query(ge=1, le=100, description="Items of a page.")]
DEFAULT_PER_PAGE: Final = 20

T = TypeVar("T")
Json: TypeAlias = dict[str, Any]


def admin_router() -> APIRouter:
    """Return a router of endpoints for operators."""
    return APIRouter(
        prefix=PREFIX,
        route_class=BulkRoute,
        tags=["Open Job Spec"],
        default_response_class=OjsResponse,
        responses=documented(400, 401, 403, 404, 409, 422, 429, 500, 503),
    )


def paged(items: Sequence[T], page: int, per_page: int) -> tuple[Sequence[T], Json]:
    """Return the items of a page, and the description of the page."""
    begin = (page - 1) * per_page
    return items[begin : begin + per_page], {"total": len(items), "page": page, "per_page": per_page}


async def soon_current(here: Components) -> None:
    """Wait briefly for the history, so that an answer has what was stored just now."""
    await catches_up(here, await here.log.tail(EXECUTIONS), CATCH_UP_PAUSES_S)


def require_confirmation(body: Json) -> None:
    """Check that a request confirms that it changes many jobs (ojs-admin-api §4).

    Raises:
        Problem: `confirm` is not true.
    """
    if body.get("confirm") is not True:
        raise refused("confirm", "must be true, because the request changes all jobs that match", body.get("confirm"))
