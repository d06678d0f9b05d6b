"""Headers and error codes of JetStream that the adapters use; nothing here is ours to choose."""

from typing import Final

EXPECTED_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
MESSAGE_ID: Final = "Nats-Msg-Id"
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
"""The second is what the losers of a race get while the winner's message is still under way to the replicas."""
ID_IN_PROCESS: Final = 10_158
"""A message of the same id is still under way to the replicas: the answer to one that was sent again too soon."""
UNAVAILABLE: Final = 503
"""The `code` of an answer that may be another the next time: no leader, no resources."""
SERVER_ERRORS: Final = 500
"""From this `code` on the fault is the server's."""
STREAM_NOT_FOUND: Final = 10059
CONSUMER_NOT_FOUND: Final = 10014
SUBJECTS_OVERLAP: Final = 10065
NO_MESSAGE_FOUND: Final = 10_037
