"""Notifications and channels for the tests."""

from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter

from tocsin.adapters.notifications import open_channel
from tocsin.adapters.system_clock import SystemClock
from tocsin.domain.notification import Kind, Notification
from tocsin.ports import ChannelRefused, NotificationChannel
from tocsin.settings.channels import OutsideChannel

AT = datetime(2026, 11, 26, 3, 0, tzinfo=UTC)
ID = "0199a0c8-7b5e-7a3c-9d2f-1b2c3d4e5f60"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - the example of Standard Webhooks
HOSTILE = "\x1b[2J\u202e<!channel> @everyone [Log in](https://evil.test)\r\nBcc: all@example.com"
"""A text that acts on terminals, chats and headers."""


def notification(**fields: Any) -> Notification:  # noqa: ANN401 - as `Notification`
    usual: dict[str, Any] = {
        "id": ID,
        "channel": "ops",
        "job": "orders.nightly",
        "kind": Kind.FAILED,
        "at": AT,
        "execution_id": "e1",
        "reason": "ValueError: no rows",
        "why": "attempt 1 failed\nattempt 2 failed",
        "url": "https://tocsin.example.com/executions/e1?a=1&b=2",
    }
    return Notification(**usual | fields)


def channel(**settings: Any) -> NotificationChannel:  # noqa: ANN401 - as in the file
    checked: OutsideChannel = TypeAdapter(OutsideChannel).validate_python(settings)
    return open_channel("ops", checked, SystemClock(), "1.2.3")


async def refusal(channel: NotificationChannel, sent: Notification | None = None) -> ChannelRefused:
    """Send a notification that the receiver does not accept."""
    try:
        await channel.send(sent or notification())
    except ChannelRefused as refused:
        return refused
    raise AssertionError("the notification was accepted")
