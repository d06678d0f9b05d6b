"""Every fact that Tocsin records, every input that it takes, every event that it shows: the one source of `schemas/`.

    message, actor, failure, trigger     what the rest is made of
    ledger, leadership, lock             facts about a job, a lease, a lock
    plan, execution, steps, ending       facts about an execution: what it is to do, and what becomes of it
    dead_letter                          facts about what failed for good
    requests, report, timers             inputs: not yet decided
    announcements, mq                    what those outside are told, and answer

Facts are in the past tense, immutable, and a storage format: a released class only ever gains fields with defaults; a
breaking change is a new class with a new `v`. Times are aware UTC datetimes, durations seconds.
"""

from .actor import Actor
from .dead_letter import (
    MAX_BODY_BYTES,
    MAX_REASON_LENGTH,
    Attempt,
    DeadLettered,
    DeadLetterFact,
    PoisonMessage,
    Replayed,
    Resolved,
)
from .ending import Cancelled, Completed, Failed, FailedReason, Terminal
from .execution import (
    Admitted,
    ExecutionFact,
    Lost,
    Planned,
    Recovered,
    Requested,
    Skipped,
    SkipReason,
)
from .failure import Failure
from .leadership import LeadershipFact, LeadershipGained, LeadershipLost, LeadershipReleased
from .ledger import (
    Defined,
    DefinitionFact,
    Deleted,
    Due,
    LedgerFact,
    Passed,
    PassedReason,
    Paused,
    Resumed,
)
from .lock import Acquired, LockFact, Queued, Waiter
from .message import Input, Message, Recorded, Sequence
from .mq import Completion, Envelope, EnvelopeData
from .plan import Plan, PlannedStep
from .public import (
    MISSED_REASONS,
    CronMissed,
    CronMissedData,
    CronSkipped,
    CronSkippedData,
    CronTriggered,
    CronTriggeredData,
    MissedReason,
    PublicEvent,
)
from .report import Report
from .requests import CancelRequest, Enqueued, Trigger
from .steps import (
    Advanced,
    Dispatched,
    Exhausted,
    ExhaustedReason,
    Released,
    ReleasedReason,
    RetryScheduled,
    Started,
)
from .timers import ExpiryTimer, LeaseTimer, RetryTimer, Timer
from .trigger import COMPENSATING_TRIGGERS, TriggerKind, TriggerSource

__all__ = [
    "COMPENSATING_TRIGGERS",
    "MAX_BODY_BYTES",
    "MAX_REASON_LENGTH",
    "MISSED_REASONS",
    "Acquired",
    "Actor",
    "Admitted",
    "Advanced",
    "Attempt",
    "CancelRequest",
    "Cancelled",
    "Completed",
    "Completion",
    "CronMissed",
    "CronMissedData",
    "CronSkipped",
    "CronSkippedData",
    "CronTriggered",
    "CronTriggeredData",
    "DeadLetterFact",
    "DeadLettered",
    "Defined",
    "DefinitionFact",
    "Deleted",
    "Dispatched",
    "Due",
    "Enqueued",
    "Envelope",
    "EnvelopeData",
    "ExecutionFact",
    "Exhausted",
    "ExhaustedReason",
    "ExpiryTimer",
    "Failed",
    "FailedReason",
    "Failure",
    "Input",
    "LeadershipFact",
    "LeadershipGained",
    "LeadershipLost",
    "LeadershipReleased",
    "LeaseTimer",
    "LedgerFact",
    "LockFact",
    "Lost",
    "Message",
    "MissedReason",
    "Passed",
    "PassedReason",
    "Paused",
    "Plan",
    "Planned",
    "PlannedStep",
    "PoisonMessage",
    "PublicEvent",
    "Queued",
    "Recorded",
    "Recovered",
    "Released",
    "ReleasedReason",
    "Replayed",
    "Report",
    "Requested",
    "Resolved",
    "Resumed",
    "RetryScheduled",
    "RetryTimer",
    "Sequence",
    "SkipReason",
    "Skipped",
    "Started",
    "Terminal",
    "Timer",
    "Trigger",
    "TriggerKind",
    "TriggerSource",
    "Waiter",
]
