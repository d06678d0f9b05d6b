"""The list of notifications: what stands for what, and how it ended."""

from functools import partial

import pytest

from tests.domain.given import NOON
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
from tocsin.ports import EventLog
from tocsin.ports.queries import InvalidQuery, NotificationQuery, every
from tocsin.services.notifications import NotificationRow, notifications
from tocsin.testing import InMemoryEventLog


def raised(number: str) -> NotificationRaised:
    return NotificationRaised(job="report", id=number, channel="ops", kind=Kind.FAILED, at=NOON)


def prepared(number: str, through: int) -> NotificationPrepared:
    return NotificationPrepared(job="report", id=number, channel="ops", through=through)


async def listed(log: EventLog, *, limit: int = 50, failed: bool = False) -> list[NotificationRow]:
    """Return all notifications, read in pages."""
    return [row async for row in every(partial(notifications, log), NotificationQuery(limit=limit, failed=failed))]


async def given(log: InMemoryEventLog, *events: Message) -> None:
    for event in events:
        await log.append(event, expect=await log.tail(f"notification.report.{event.id}.>"))  # type: ignore[attr-defined]


@pytest.fixture
async def delivered_late() -> InMemoryEventLog:
    """A log with notifications whose messages were prepared after many others."""
    log = InMemoryEventLog()
    await given(log, *(raised(f"{number}") for number in range(30)))
    await given(log, NotificationSilenced(job="report", id="7", silence="s", reason="r"))
    await given(log, prepared("0", 4), prepared("4", 20), NotificationDelivered(job="report", id="0", attempt=1))
    await given(log, *(raised(f"{number}") for number in range(30, 50)))
    failed = NotificationAttemptFailed(job="report", id="4", attempt=1, error="status 503", next_attempt_at=NOON)
    await given(log, failed, prepared("20", 45))
    return log


@pytest.mark.parametrize("limit", [1, 3, 7, 50, 1_000])
async def test_pages_list_each_notification_once(delivered_late: InMemoryEventLog, limit: int) -> None:
    """The message that stands for a notification may be prepared after the end of its page."""
    shown = {int(row.id): (row.state, row.message) for row in await listed(delivered_late, limit=limit)}
    assert list(shown) == [*range(49, -1, -1)]
    assert [shown[number] for number in (0, 3, 4, 7)] == [
        ("delivered", None),
        ("delivered", "0"),
        ("retrying", None),
        ("silenced", None),
    ]
    assert {shown[number] for number in (5, 6, *range(8, 20))} == {("retrying", "4")}
    assert shown[20] == ("sending", None)
    assert {shown[number] for number in range(21, 41)} == {("sending", "20")}
    assert {shown[number] for number in range(41, 50)} == {("waiting", None)}


async def test_failed_notifications_are_listed_alone(delivered_late: InMemoryEventLog) -> None:
    assert {int(row.id) for row in await listed(delivered_late, limit=3, failed=True)} == {*range(4, 20)} - {7}


async def test_list_ends_where_the_stream_begins(delivered_late: InMemoryEventLog) -> None:
    """The first message of a group is gone, and its delivery still counts."""
    for number in range(3):
        subject = f"notification.report.{number}.raised"
        stored = await delivered_late.last(subject)
        assert stored is not None
        await delivered_late.remove(subject, stored.sequence)
    shown = await listed(delivered_late, limit=4)
    assert [int(row.id) for row in shown] == [*range(49, 2, -1)]
    assert (shown[-1].state, shown[-1].message) == ("delivered", "0")


async def test_new_notifications_do_not_move_pages(delivered_late: InMemoryEventLog) -> None:
    first = await notifications(delivered_late, NotificationQuery(limit=5))
    await given(delivered_late, raised("new"))
    second = await notifications(delivered_late, NotificationQuery(limit=5, cursor=first.cursor))
    assert [int(row.id) for row in (*first.rows, *second.rows)] == [*range(49, 39, -1)]


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "9" * 19, "", "²"])
def test_cursor_is_one_of_a_page(cursor: str) -> None:
    with pytest.raises(InvalidQuery):
        NotificationQuery(cursor=cursor)


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
    await given(log, *events)
    shown = [(row.id, row.state, row.attempts, row.error, row.message) for row in await listed(log)]
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
        log.receive(subject, b"{}")
    await log.append(raised("4"), expect=0)
    assert [row.id for row in await listed(log)] == ["4", "1"]
