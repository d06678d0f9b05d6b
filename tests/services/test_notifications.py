"""The list of notifications: what stands for what, and how it ended."""

from tests.domain.given import NOON
from tests.guards import guarded
from tocsin.domain.events import (
    Message,
    NotificationAbandoned,
    NotificationAttemptFailed,
    NotificationDelivered,
    NotificationPrepared,
    NotificationRaised,
    NotificationSilenced,
)
from tocsin.domain.notification import Kind
from tocsin.services.notifications import newest_notifications
from tocsin.testing import InMemoryEventLog


def raised(number: str) -> NotificationRaised:
    return NotificationRaised(job="report", id=number, channel="ops", kind=Kind.FAILED, at=NOON)


def prepared(number: str, through: int) -> NotificationPrepared:
    return NotificationPrepared(job="report", id=number, channel="ops", through=through)


async def test_each_notification_has_the_state_of_its_message() -> None:
    log = InMemoryEventLog()
    job = "report"
    events: list[Message] = [
        *map(raised, "123"),
        NotificationSilenced(job=job, id="3", silence="s", reason="r"),
        prepared("1", 2),
        raised("4"),
        prepared("4", 6),
        NotificationAttemptFailed(job=job, id="1", attempt=1, error="status 503", next_attempt_at=NOON),
        NotificationAttemptFailed(job=job, id="4", attempt=1, error="status 503", next_attempt_at=NOON),
        NotificationDelivered(job=job, id="1", attempt=2),
        raised("5"),
        prepared("5", 11),
        NotificationAbandoned(job=job, id="5", attempt=1, error="status 404"),
        raised("6"),
    ]
    for event in events:
        await log.append(event, expect=await log.tail(f"notification.report.{event.id}.>"))  # type: ignore[attr-defined]
    shown = [(row.id, row.state, row.attempts, row.error, row.message) for row in await newest_notifications(log)]
    assert shown == [
        ("6", "waiting", 0, None, None),
        ("5", "abandoned", 1, "status 404", None),
        ("4", "retrying", 1, "status 503", None),
        ("3", "silenced", 0, None, None),
        ("2", "delivered", 2, None, "1"),
        ("1", "delivered", 2, None, None),
    ]


async def test_unreadable_message_hides_no_other() -> None:
    log = InMemoryEventLog()
    await log.append(raised("1"), expect=0)
    for subject in ("notification.report.2.raised", "notification.report.3.of-a-newer-version"):
        log.receive(subject, b"{}", headers=guarded(subject))
    await log.append(raised("4"), expect=0)
    assert [row.id for row in await newest_notifications(log)] == ["4", "1"]
