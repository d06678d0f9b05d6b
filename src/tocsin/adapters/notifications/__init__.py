"""Channels that carry notifications out of Tocsin."""

from ...ports import Clock, NotificationChannel
from ...settings.channels import AppriseChannel, EmailChannel, OutsideChannel, WebhookChannel
from ..extras import require_extra


def open_channel(name: str, settings: OutsideChannel, clock: Clock, version: str) -> NotificationChannel:
    """Return the channel of some settings; `name`: as the settings call it."""
    match settings:
        case WebhookChannel():
            from .webhook import Webhook  # noqa: PLC0415 - httpx takes long to import

            return Webhook(name, settings, clock, version)
        case EmailChannel():
            require_extra(f"the channel `{name}` (`type: email`)", "notify")
            from .mail import Mail  # noqa: PLC0415 - its library is in an extra

            return Mail(name, settings)
        case AppriseChannel():
            require_extra(f"the channel `{name}` (`type: apprise`)", "notify")
            from .apprise_channel import AppriseMessages  # noqa: PLC0415 - few installations need it

            channel = AppriseMessages(name, settings)
            channel.check()
            return channel
