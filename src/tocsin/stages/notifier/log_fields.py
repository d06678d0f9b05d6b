"""Log lines about notifications, with their executions."""

import logging
from collections.abc import Sequence
from typing import Final

from ... import telemetry
from ...domain.events import NotificationDelivered, NotificationFact, NotificationSilenced
from .backlog import Waiting

_NAME: Final = "tocsin.notifier"
_level: Final = logging.getLogger(_NAME)
_log = telemetry.get_logger(_NAME)


def fields(about: NotificationFact | Waiting) -> dict[str, str]:
    """Return the fields of log lines about a notification."""
    execution_id = {} if about.execution_id is None else {"execution_id": about.execution_id}
    return {"job": about.job, "notification": about.id, **execution_id}


def note_outcome(channel: str, fact: NotificationFact, grouped: Sequence[Waiting]) -> None:
    """Write the lines about a stored event that stands for a whole message.

    Answers that accept nothing have had a warning already. Each further notification of the message has a line of its own at debug, so that
    the lines about an execution show its notification also if the event names another.
    """
    if isinstance(fact, NotificationDelivered):
        numbers = {"attempt": fact.attempt, "others": len(grouped)}
        _log.info("notification delivered", action="notification-delivered", channel=channel, **numbers, **fields(fact))
    elif isinstance(fact, NotificationSilenced):
        action = "notification-silenced"
        _log.info("notification silenced", action=action, channel=channel, silence=fact.silence, **fields(fact))
    if not _level.isEnabledFor(logging.DEBUG):
        return
    for waiting in grouped:
        _log.debug(
            "notification is in the message of another",
            action="notification-grouped",
            outcome=str(getattr(fact, "type", "")),
            channel=waiting.channel,
            message=fact.id,
            **fields(waiting),
        )
