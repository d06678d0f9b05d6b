"""`/v1/notifications`: the newest notifications and their delivery."""

from fastapi import APIRouter
from pydantic import BaseModel

from ....services.notifications import MAX_EVENTS, NotificationRow, newest_notifications
from ..auth.security import SharedOperator
from ..auth.visibility import Run
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
    return NotificationList(
        notifications=[
            row
            for row in await newest_notifications(here.log)
            if await here.visibility.may_see_run(caller, Run(row.job, None, row.at))
        ]
    )
