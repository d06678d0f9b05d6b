"""Channels that carry notifications to people and programs."""

from typing import Protocol

from ..domain.errors import TocsinError
from ..domain.notification import Notification


class ChannelRefused(TocsinError):
    """A channel did not accept a notification.

    `retryable`: it may accept the same notification later, but not before `retry_after` seconds if these are given.
    """

    code = "channel-refused"

    def __init__(self, message: str, *, retryable: bool, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after = retry_after


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
