"""What the public sees (ojs-cron §9)."""

from datetime import datetime
from typing import Final, Literal, TypeAlias, get_args

from .execution import SkipReason
from .message import Message


class CronTriggeredData(Message):
    """The data of `cron.triggered`."""

    cron_name: str
    cron_expression: str
    timezone: str
    job_id: str
    job_type: str
    run_count: int
    scheduled_time: datetime
    actual_time: datetime


class CronTriggered(Message):
    """A cron job fired and an execution was admitted (ojs-cron §9.1, CRON-29)."""

    event: Literal["cron.triggered"] = "cron.triggered"
    timestamp: datetime
    data: CronTriggeredData


class CronSkippedData(Message):
    """The data of `cron.skipped`."""

    cron_name: str
    cron_expression: str
    timezone: str
    reason: SkipReason
    active_job_id: str | None = None
    scheduled_time: datetime


class CronSkipped(Message):
    """A scheduled occurrence did not become an execution (ojs-cron §9.2, CRON-30)."""

    event: Literal["cron.skipped"] = "cron.skipped"
    timestamp: datetime
    data: CronSkippedData


MissedReason: TypeAlias = Literal["missed", "throttled"]
"""Why instants pass without firing though nobody wished it: no ticker led, or the job was out of hand."""
MISSED_REASONS: Final[frozenset[str]] = frozenset(get_args(MissedReason))


class CronMissedData(Message):
    """The data of `cron.missed`: the span that passed, (start, until], as the ledger has it."""

    cron_name: str
    cron_expression: str
    timezone: str
    reason: MissedReason
    count: int
    start: datetime
    until: datetime


class CronMissed(Message):
    """Scheduled occurrences passed without firing, and nobody wished it: one event a span, with how many they were."""

    event: Literal["cron.missed"] = "cron.missed"
    timestamp: datetime
    data: CronMissedData


PublicEvent: TypeAlias = CronTriggered | CronSkipped | CronMissed
