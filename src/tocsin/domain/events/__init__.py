"""Every event that Tocsin records, every input, and every public event.

These classes are the only source of the JSON Schemas in `schemas/`.

    message                 base classes, and parts that several messages share
    ledger                  events of a job: its definitions, and the instants of its schedule
    coordination            events of job locks and leader leases
    execution, steps        events of an execution, and of its steps
    dead_letter             events of executions that failed for good and of unusable messages
    inputs                  requests, reports and timers: not decided yet
    public, mq              what clients and executors outside Tocsin receive, and what they answer

Events are in the past tense and immutable, and they are a storage format. A released class only gains fields with
defaults; a breaking change is a new class with a new `v`. Times are aware UTC datetimes, durations are seconds.
"""

from .coordination import (
    Acquired,
    LeadershipFact,
    LeadershipGained,
    LeadershipLost,
    LeadershipReleased,
    LockFact,
    Queued,
    Waiter,
)
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
from .execution import (
    Admitted,
    Cancelled,
    Completed,
    ExecutionFact,
    ExhaustedReason,
    Failed,
    FailedReason,
    Lost,
    Plan,
    Planned,
    PlannedStep,
    Recovered,
    Requested,
    Skipped,
    SkipReason,
    Terminal,
)
from .inputs import CancelRequest, Enqueued, ExpiryTimer, LeaseTimer, Report, RetryTimer, Timer, Trigger
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
from .message import (
    COMPENSATING_TRIGGERS,
    Actor,
    Failure,
    Input,
    Message,
    Recorded,
    Sequence,
    TriggerKind,
    TriggerSource,
)
from .mq import Completion, Envelope, EnvelopeData
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
from .steps import (
    Advanced,
    Dispatched,
    Exhausted,
    Released,
    ReleasedReason,
    RetryScheduled,
    Started,
)

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
