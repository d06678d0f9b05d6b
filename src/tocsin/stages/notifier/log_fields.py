"""Log lines about notifications, with their executions."""

import logging
from collections.abc import Iterable
from typing import Final

from ... import telemetry
from ...domain.events import NotificationFact
from .backlog import Waiting

_NAME: Final = "tocsin.notifier"
_level: Final = logging.getLogger(_NAME)
_log = telemetry.get_logger(_NAME)


def fields(about: NotificationFact | Waiting) -> dict[str, str]:
    """Return the fields of log lines about a notification."""
    execution_id = {} if about.execution_id is None else {"execution_id": about.execution_id}
    return {"job": about.job, "notification": about.id, **execution_id}


def note_grouped(fact: NotificationFact, grouped: Iterable[Waiting]) -> None:
    """Write a line for each further notification of a message.

    So the lines about an execution show its notification also if the event names another.
    """
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
