"""`/v1/notifications`: notifications and their delivery."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from ....ports.queries import MAX_NOTIFICATIONS, USUAL_LIMIT, NotificationQuery
from ....services.notifications import NotificationRow, notifications
from ..auth.security import SharedOperator
from ..auth.visibility import Run
from .dependencies import Here

router = APIRouter(prefix="/v1/notifications", tags=["notifications"])


class NotificationList(BaseModel):
    """A page of notifications, the newest first; `next` is the cursor of the following page."""

    notifications: list[NotificationRow]
    next: str | None = None


@router.get("", operation_id="listNotifications")
async def list_notifications(
    here: Here,
    caller: SharedOperator,
    failed: Annotated[bool, Query(description="Only notifications that a receiver did not accept.")] = False,  # noqa: FBT002
    cursor: Annotated[str | None, Query(max_length=32, description="`next` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_NOTIFICATIONS)] = USUAL_LIMIT,
) -> NotificationList:
    """List notifications and their delivery, for as long as their stream has them.

    A page has fewer than `limit` rows if the caller may not see some of them, or if `failed` leaves some out.
    """
    page = await notifications(here.log, NotificationQuery(failed=failed, cursor=cursor, limit=limit))
    seen = [row for row in page.rows if await here.visibility.may_see_run(caller, Run(row.job, None, row.at))]
    return NotificationList(notifications=seen, next=page.cursor)
