"""`tocsin notifications`: list and test."""

from datetime import UTC, datetime
from secrets import token_hex
from typing import Annotated, Final, TypeAlias

import typer
from rich.text import Text

from .. import __version__
from ..domain.formats.document import listed, nearest
from ..domain.ids import notification_id
from ..domain.notification import Kind, Notification
from ..ports.queries import MAX_NOTIFICATIONS, USUAL_LIMIT, NotificationQuery, Page, every
from ..services.notifications import NotificationRow
from ..services.operations.errors import NotServed
from ..services.operator import Operator
from ..settings.channels import NatsChannel
from .output.format import local
from .runtime.errors import Exit, UsageError
from .runtime.event_loop import run
from .runtime.history_pages import All, Cursor, print_page
from .runtime.session import Session, actor

TEST_JOB: Final = "tocsin.test"
"""The job that a test names; no job has it."""


Limit: TypeAlias = Annotated[int, typer.Option(min=1, max=MAX_NOTIFICATIONS, help="Rows of one page.")]


def send_test(
    session: Session,
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="The name of the channel in the settings.")],
) -> None:
    """Send a test through a channel of the settings, once.

    It looks like the notification of a failed job, `tocsin.test`, and says that it is a test.

    Example: `tocsin notifications test incidents`
    """
    if session.server:
        raise NotServed("notifications test")
    sent = run(_send(session, channel))
    session.output.answer(
        {"channel": channel, "id": sent.id, "outcome": "accepted"},
        lambda: [Text(f"{channel} accepted the test {sent.id}", style="green")],
    )


def list_notifications(
    session: Session,
    failed: Annotated[bool, typer.Option("--failed", help="Only those that a receiver did not accept.")] = False,
    cursor: Cursor = None,
    limit: Limit = USUAL_LIMIT,
    is_all: All = False,
) -> None:
    """List notifications and their delivery, the newest first.

    Example: `tocsin notifications list --failed --all`
    """
    query = NotificationQuery(failed=failed, cursor=cursor, limit=MAX_NOTIFICATIONS if is_all else limit)

    async def read(operator: Operator) -> Page[NotificationRow]:
        if is_all:
            return Page([row async for row in every(operator.notifications, query)])
        return await operator.notifications(query)

    print_page(
        session,
        session.ask(read),
        ("AT", "JOB", "KIND", "CHANNEL", "STATE", "ATTEMPTS", "ERROR OR REASON"),
        _row,
        empty="no notifications",
        least=("ERROR OR REASON", "ATTEMPTS"),
    )


def _row(row: NotificationRow) -> tuple[object, ...]:
    job = Text(row.job, style="bold")
    return local(row.at), job, row.kind.value, row.channel, row.state, row.attempts or "", row.error or row.reason


async def _send(session: Session, name: str) -> Notification:
    from ..adapters.notifications import open_channel  # noqa: PLC0415 - `list` needs no channel
    from ..adapters.system_clock import SystemClock  # noqa: PLC0415
    from ..bootstrap.stage_runner import channel_of  # noqa: PLC0415

    settings = session.settings()
    channels = settings.notifications.channels
    if name not in channels:
        suggestion = nearest(name, channels)
        hint = f", did you mean {suggestion!r}?" if suggestion else ""
        known = (
            f": the settings have {listed(sorted(channels))}" if channels else ": add it to `notifications.channels`"
        )
        raise UsageError(f"channel {name!r} does not exist{hint or known}", Exit.NOT_FOUND, code="channel-not-found")
    notification = _test(name, datetime.now(UTC))
    channel = channels[name]
    if isinstance(channel, NatsChannel):
        async with session.backend.connect(settings) as installation:
            await channel_of(installation, name, channel).send(notification)
    else:
        await open_channel(name, channel, SystemClock(), __version__).send(notification)
    return notification


def _test(channel: str, now: datetime) -> Notification:
    return Notification(
        id=notification_id(TEST_JOB, now, Kind.FAILED, channel, token_hex(8)),
        channel=channel,
        job=TEST_JOB,
        kind=Kind.FAILED,
        at=now,
        reason=f"This is a test, and no job failed. {actor().identity} ran `tocsin notifications test {channel}`.",
    )
