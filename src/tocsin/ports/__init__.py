"""The ports: interfaces of the stages to the outside world.

Every port has one behaviour suite in `tests/conformance/`, run over each of its implementations. The exceptions here
are for broken plumbing; a failed job is an event.
"""

from .agents import AgentChannel, HandOver, ReceiveAbsence, ReceiveCommand, ReceiveHoldList, ReceiveTask
from .clock import Clock
from .durables import Delivery, DurableSpec, QueueStatus, TaskQueue, TaskQueues, acknowledge, acknowledge_each
from .errors import (
    LogUnavailable,
    MessageTooLarge,
    NotAllowed,
    OutdatedState,
    RequestRefused,
    SequenceConflict,
    StaleRead,
    Unreachable,
    UnsupportedLayout,
)
from .event_log import (
    Append,
    Batch,
    Decode,
    Delay,
    EventLog,
    Heading,
    Headings,
    Loaded,
    Progress,
    Publish,
    Write,
    Written,
    check_scopes,
    check_subject,
    write_each,
)
from .history import (
    DeadLetterRow,
    ExecutionRow,
    History,
    HistoryIncomplete,
    HistoryTooNew,
    HistoryUnavailable,
    HistoryUrlInvalid,
    JobRow,
)
from .projections import Projections
from .stored_log import ArchiveStore, Extent, StoredLog, StoredMessage, StreamPurge

__all__ = [
    "AgentChannel",
    "Append",
    "ArchiveStore",
    "Batch",
    "Clock",
    "DeadLetterRow",
    "Decode",
    "Delay",
    "Delivery",
    "DurableSpec",
    "EventLog",
    "ExecutionRow",
    "Extent",
    "HandOver",
    "Heading",
    "Headings",
    "History",
    "HistoryIncomplete",
    "HistoryTooNew",
    "HistoryUnavailable",
    "HistoryUrlInvalid",
    "JobRow",
    "Loaded",
    "LogUnavailable",
    "MessageTooLarge",
    "NotAllowed",
    "OutdatedState",
    "Progress",
    "Projections",
    "Publish",
    "QueueStatus",
    "ReceiveAbsence",
    "ReceiveCommand",
    "ReceiveHoldList",
    "ReceiveTask",
    "RequestRefused",
    "SequenceConflict",
    "StaleRead",
    "StoredLog",
    "StoredMessage",
    "StreamPurge",
    "TaskQueue",
    "TaskQueues",
    "Unreachable",
    "UnsupportedLayout",
    "Write",
    "Written",
    "acknowledge",
    "acknowledge_each",
    "check_scopes",
    "check_subject",
    "write_each",
]
