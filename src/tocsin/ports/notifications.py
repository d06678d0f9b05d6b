"""Channels that carry notifications to people and programs."""

from typing import Protocol

from ..domain.errors import TocsinError
from ..domain.notification import Notification


class ChannelRefused(TocsinError):
    """A channel did not accept a notification.

    `retryable`: it may accept the same notification later.
    """

    code = "channel-refused"

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class NotificationChannel(Protocol):
    """Sends notifications to one receiver.

    A notification may be sent twice, after a crash or a lost answer; both have the same id.
    """

    async def send(self, notification: Notification) -> None:
        """Send a notification, and return after the receiver accepted it.

        It ends by itself within a time that the channel knows. It follows no redirect, and its errors show no secret.

        Raises:
            ChannelRefused: the receiver did not accept it, or did not answer.
        """
        ...
