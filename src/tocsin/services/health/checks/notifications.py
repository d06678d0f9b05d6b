"""Check whether the receivers of notifications accept them."""

from typing import Final

from ....ports.queries import MAX_NOTIFICATIONS, NotificationQuery
from ...notifications import FAILED, DeliveryState, NotificationRow, notifications
from ..findings import CheckContext, Finding, bad, ok

_ANSWERED: Final[frozenset[DeliveryState]] = FAILED | {"delivered"}
MAX_LISTED: Final = 10
"""Channels that a finding names."""


async def delivery(context: CheckContext) -> Finding:
    """Report channels whose receiver did not accept the newest message (`notifications-not-accepted`)."""
    newest: dict[str, NotificationRow] = {}
    for row in (await notifications(context.target.log, NotificationQuery(limit=MAX_NOTIFICATIONS))).rows:
        if row.state in _ANSWERED:
            newest.setdefault(row.channel, row)
    refused = [row for _, row in sorted(newest.items()) if row.state in FAILED]
    if not refused:
        return ok("notifications-not-accepted", "no receiver refused the newest notification of its channel")
    examples = ", ".join(f"`{row.channel}` ({row.error})" for row in refused[:MAX_LISTED])
    return bad(
        "notifications-not-accepted",
        f"receivers did not accept notifications: {examples}",
        means="people do not hear of what happens to jobs",
        do="correct the channel in `notifications.channels`, then run `tocsin notifications test CHANNEL`",
        channels=[row.channel for row in refused[:MAX_LISTED]],
    )
