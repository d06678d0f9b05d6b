"""Headers and error codes of JetStream that the adapters use."""

from typing import Final

EXPECTED_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
MESSAGE_ID: Final = "Nats-Msg-Id"
BATCH_ID: Final = "Nats-Batch-Id"
BATCH_SEQUENCE: Final = "Nats-Batch-Sequence"
BATCH_COMMIT: Final = "Nats-Batch-Commit"
SCHEDULE: Final = "Nats-Schedule"
SCHEDULE_TARGET: Final = "Nats-Schedule-Target"
TTL: Final = "Nats-TTL"
ROLLUP: Final = "Nats-Rollup"
KV_OPERATION: Final = "KV-Operation"
MARKER_REASON: Final = "Nats-Marker-Reason"
SUBJECT: Final = "Nats-Subject"
SEQUENCE: Final = "Nats-Sequence"
TIME_STAMP: Final = "Nats-Time-Stamp"
PENDING: Final = "Nats-Num-Pending"
UP_TO: Final = "Nats-UpTo-Sequence"
STATUS: Final = "Status"
DESCRIPTION: Final = "Description"

NO_MESSAGES: Final = "404"
REQUEST_TIMEOUT: Final = "408"
TOO_MANY_SUBJECTS: Final = "413"
NO_RESPONDERS: Final = "503"
HEARTBEAT: Final = "100"
END_OF_BATCH: Final = "204"

WRONG_LAST_SEQUENCE: Final = frozenset({10071, 10164})
"""The second code is sent to the losers of a race while the winner's message is on its way to the replicas."""
ID_IN_PROCESS: Final = 10_158
"""A message with the same id is on its way to the replicas: it was sent again too soon."""
UNAVAILABLE: Final = 503
"""The `code` of an error that a retry may resolve: no leader, no resources."""
SERVER_ERRORS: Final = 500
"""From this `code` on, the server is at fault."""
NO_STORAGE: Final = frozenset({10028, 10047})
"""The account or the server cannot reserve what a stream may hold."""
STREAM_NOT_FOUND: Final = 10059
CONSUMER_NOT_FOUND: Final = 10014
SUBJECTS_OVERLAP: Final = 10065
NO_MESSAGE_FOUND: Final = 10_037
MESSAGE_GONE: Final = 10_057
"""The message that a request would delete does not exist."""
