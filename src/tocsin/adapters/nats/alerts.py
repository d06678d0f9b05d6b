"""The channel of notifications over core NATS: `cron.alert.<job>`."""

from typing import Final

from ... import subjects
from ...domain.events import CronAlert, CronAlertData
from ...domain.formats import cloud_events
from ...domain.notification import Notification
from ...ports import ChannelRefused, LogUnavailable, RequestRefused
from .client.connection import Connection
from .client.connection_end import CLOSING_ERRORS
from .client.names import Names
from .core_messages import CoreMessages

FLUSH_TIMEOUT_S: Final = 10


class NatsAlertChannel:
    """Implement `ports.NotificationChannel`."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection = connection
        self._messages = CoreMessages(connection)
        self._names = names

    async def send(self, notification: Notification) -> None:
        """Publish a notification, and wait until the server has it."""
        subject = self._names.alerts(subjects.token(notification.job))
        try:
            event = _event(notification)
            headers = dict(cloud_events.headers_of(event, f"/{self._names.root}"))
            await self._messages.send(subject, event.encode(), headers)
            await self._connection.client.flush(FLUSH_TIMEOUT_S)
        except RequestRefused as error:
            raise ChannelRefused(str(error), retryable=False) from error
        except (TimeoutError, LogUnavailable, *CLOSING_ERRORS) as error:
            raise ChannelRefused(f"{subject}: {error!r}", retryable=True) from error


def _event(notification: Notification) -> CronAlert:
    return CronAlert(
        timestamp=notification.at,
        data=CronAlertData(
            cron_name=notification.job,
            id=notification.id,
            channel=notification.channel,
            kind=notification.kind,
            job_id=notification.execution_id,
            reason=notification.reason,
            why=notification.why,
            url=notification.url,
            others=notification.others,
            other_jobs=notification.other_jobs,
        ),
    )
