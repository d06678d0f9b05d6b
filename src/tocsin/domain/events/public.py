"""Public events, for clients outside Tocsin (ojs-cron §9)."""

from datetime import datetime
from typing import Final, Literal, TypeAlias, get_args

from ..notification import Kind
from .execution import AnnouncedSkipReason
from .message import OwnMessage, TriggerKind, constant


class CronTriggeredData(OwnMessage, frozen=True, kw_only=True):
    """The data of `cron.triggered`."""

    cron_name: str
    cron_expression: str
    timezone: str
    job_id: str
    """The id of the execution."""
    job_type: str
    """The function of the job."""
    run_count: int
    """The number of this run since the job was registered, counted from 1; each shard has a run of its own."""
    trigger: TriggerKind = constant("cron")
    """The cause of the execution; `cron`: the schedule."""
    scheduled_time: datetime
    actual_time: datetime
    """The time (UTC) of the announcement, right after the admission."""
    traceparent: str | None = None
    """The trace context of the execution's own span (W3C Trace Context); absent: no trace is made."""
    shard: str | None = None
    """The shard of the execution; absent: the job is not divided."""

    def ran_since(self, since: datetime, stored: datetime) -> bool:
        """Return whether the run is one since a registration of its job.

        The registration governs instants after `since`, and requests from `stored` on (UTC). An occurrence of the deleted job may be
        announced late, and a backfill or a replay names an instant of the past.
        """
        return self.scheduled_time > since if self.trigger == "cron" else self.actual_time >= stored


class CronTriggered(OwnMessage, frozen=True, kw_only=True):
    """An execution was admitted (ojs-cron §9.1, CRON-29): an occurrence fired, or a trigger started it."""

    event: Literal["cron.triggered"] = constant("cron.triggered")
    timestamp: datetime
    data: CronTriggeredData


class CronSkippedData(OwnMessage, frozen=True, kw_only=True):
    """The data of `cron.skipped`."""

    cron_name: str
    cron_expression: str
    timezone: str
    reason: AnnouncedSkipReason
    """The reason why the occurrence does not run."""
    active_job_id: str | None = None
    """The id of the execution that holds the lock."""
    scheduled_time: datetime
    """The instant (UTC) of the occurrence."""
    traceparent: str | None = None
    """The trace context of the execution's own span (W3C Trace Context); absent: no trace is made."""
    shard: str | None = None
    """The shard of the execution; absent: the job is not divided, or no shard is active."""


class CronSkipped(OwnMessage, frozen=True, kw_only=True):
    """An occurrence did not become an execution (ojs-cron §9.2, CRON-30)."""

    event: Literal["cron.skipped"] = constant("cron.skipped")
    timestamp: datetime
    data: CronSkippedData


MissedReason: TypeAlias = Literal["missed", "superseded", "poison"]
"""Reasons against the user's wish: no ticker led, a newer definition came before a late decision, or the decision failed."""
MISSED_REASONS: Final[frozenset[str]] = frozenset(get_args(MissedReason))


class CronMissedData(OwnMessage, frozen=True, kw_only=True):
    """The data of `cron.missed`: a span of time in which instants did not fire."""

    cron_name: str
    cron_expression: str
    timezone: str
    reason: MissedReason
    """The reason why the instants did not fire."""
    count: int
    """The number of instants that did not fire."""
    start: datetime
    """The beginning of the span (UTC), exclusive."""
    until: datetime
    """The end of the span (UTC), inclusive."""


class CronMissed(OwnMessage, frozen=True, kw_only=True):
    """Occurrences did not fire, against the user's wish.

    There is one event for each span of time. Its `count` stands for that many `cron.skipped` events of ojs-cron §9.2, so
    that the size of an alert does not grow with the length of an outage.
    """

    event: Literal["cron.missed"] = constant("cron.missed")
    timestamp: datetime
    data: CronMissedData


class CronAnswerData(OwnMessage, frozen=True, kw_only=True):
    """The data of `cron.answer`.

    It repeats nothing of the trigger's input, which others may not see.
    """

    cron_name: str
    """The name of the job; `-` if no job can have the name in the trigger's subject."""
    trigger_id: str
    """The end of the event's subject: the trigger's `Nats-Msg-Id`, percent-encoded, or `seq-` and its sequence; before it the
    name of the program outside and a dot, or `api` and a dot if the API or an operator published the trigger."""
    answer: Literal["queued", "skipped", "refused"]
    """The answer: it waits for its job's lock, for other jobs or for acknowledgements, it does not run, or it cannot be used."""
    code: str
    """The reason: `lock_held`, `dependencies_not_met`, `quorum_not_reached`, a reason of `skipped`, or the code of an error (docs/reference/errors.md)."""
    job_id: str | None = None
    """The id of the execution; null: the trigger has none."""
    active_job_id: str | None = None
    """The id of the execution that holds the lock."""
    dead_letter: str | None = None
    """The id of the dead letter that keeps a trigger with the whole reason; null: the trigger became no dead letter."""
    traceparent: str | None = None
    """The trace context of the execution's own span (W3C Trace Context); absent: no trace is made, or there is no execution."""


class CronAnswer(OwnMessage, frozen=True, kw_only=True):
    """A trigger did not start an execution at once.

    A trigger whose execution starts at once has none. There is one for each other trigger, and a second if its execution waited
    for other jobs or for acknowledgements in vain.
    """

    event: Literal["cron.answer"] = constant("cron.answer")
    timestamp: datetime
    data: CronAnswerData


class CronAlertData(OwnMessage, frozen=True, kw_only=True):
    """The data of `cron.alert`: a notification of the channel type `nats`."""

    cron_name: str
    id: str
    """The id of the notification. A message that comes twice has the same."""
    channel: str
    kind: Kind
    """What happened."""
    job_id: str | None = None
    """The id of the execution; null: it is about none."""
    reason: str = constant("")
    """The message of the error, or the reason for the skip."""
    why: str = constant("")
    """Further lines for people."""
    url: str | None = None
    """The page of the execution or of the job; null: the settings name no public URL."""
    others: int = constant(0)
    """The number of further notifications in this message."""
    other_jobs: tuple[str, ...] = constant(())
    """The names of their first jobs."""


class CronAlert(OwnMessage, frozen=True, kw_only=True):
    """A notification by a channel of the type `nats`.

    No stream stores it as such. The stream of notifications has its content.
    """

    event: Literal["cron.alert"] = constant("cron.alert")
    timestamp: datetime
    """The time (UTC) at which it happened."""
    data: CronAlertData


PublicEvent: TypeAlias = CronTriggered | CronSkipped | CronMissed | CronAnswer
