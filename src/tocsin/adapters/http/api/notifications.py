"""`/v1/notifications`: the newest notifications and their delivery."""

from fastapi import APIRouter
from pydantic import BaseModel

from ....services.notifications import MAX_EVENTS, NotificationRow, newest_notifications
from ..auth.security import SharedOperator
from .dependencies import Here

router = APIRouter(prefix="/v1/notifications", tags=["notifications"])


class NotificationList(BaseModel):
    """The newest notifications first."""

    notifications: list[NotificationRow]


@router.get(
    "",
    operation_id="listNotifications",
    description=f"List the notifications among the newest {MAX_EVENTS:,} events of their stream, of jobs that the caller sees.",
)
async def list_notifications(here: Here, caller: SharedOperator) -> NotificationList:
    """List the newest notifications and their delivery."""
    may_see = here.visibility.of(caller)
    newest = await newest_notifications(here.log)
    seen = {job: await may_see(job) for job in {row.job for row in newest}}
    return NotificationList(notifications=[row for row in newest if seen[row.job]])
