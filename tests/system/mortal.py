"""Tocsin in a process that ends by SIGKILL right after it stores a given message.

    python -m tests.system.mortal WORD [tocsin's own arguments]

WORD is a token of the subject, for example `dispatched`; the process dies after the log's answer and before any code sees it.
`unrecorded` and `recorded` are the moments before and after a transaction of the history, `handed-over` that at which a worker
gets a task.
"""

import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Final

from tocsin.adapters.nats.client.connection import Connection
from tocsin.adapters.nats.client.transport import Outgoing
from tocsin.adapters.nats.log.commit_log import NatsCommitLog
from tocsin.adapters.sql.history import SqlHistory
from tocsin.cli import main
from tocsin.domain.events import Message, Recorded
from tocsin.ports import Encoded
from tocsin.subjects import Stream
from tocsin.worker.agent import AssignedTasks

UNRECORDED: Final = "unrecorded"
RECORDED: Final = "recorded"
HANDED_OVER: Final = "handed-over"

_append = NatsCommitLog.append
_store = Connection.store_each
_record = SqlHistory.record


def die() -> None:
    """End, as if the machine were switched off."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_behind(word: str) -> None:
    """Have the first thing stored whose subject has this token be the last; of a commit, the subject of an event."""
    in_subject = re.compile(rf'"[^"]+\.{re.escape(word)}[."]'.encode())

    async def append(self: NatsCommitLog, partition: int, body: bytes, *, expect: int) -> int:
        sequence = await _append(self, partition, body, expect=expect)
        if in_subject.search(body):
            die()
        return sequence

    async def store_each(self: Connection, messages: Sequence[Outgoing]) -> list[int | Exception]:
        results = await _store(self, messages)
        if any(word in message.subject.split(".") for message in messages):
            die()
        return results

    async def record(
        self: SqlHistory,
        stream: Stream,
        messages: Sequence[Recorded[Message]],
        *,
        after: int,
        upto: int,
        opens: bool = True,
        encoded: Sequence[Encoded] = (),
    ) -> None:
        if messages and word == UNRECORDED:
            die()
        await _record(self, stream, messages, after=after, upto=upto, opens=opens, encoded=encoded)
        if messages and word == RECORDED:
            die()

    def receive(self: AssignedTasks, message: bytes) -> None:
        del self, message
        die()

    if word == HANDED_OVER:
        AssignedTasks.receive = receive  # type: ignore[method-assign]
    NatsCommitLog.append = append  # type: ignore[method-assign]
    Connection.store_each = store_each  # type: ignore[method-assign]
    SqlHistory.record = record  # type: ignore[method-assign]


if __name__ == "__main__":
    die_behind(sys.argv.pop(1))
    main()
