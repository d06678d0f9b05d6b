"""The decisions of the log of commits, made again by a fresh process (`decide_again`)."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Final

from ...archive.commit_reader import CommitReader
from ...domain.commit import Commit, LogHead
from ...domain.events import Message, Recorded
from ...engine.report_lists import decode, listed
from ...engine.stage import BoundStage
from ...ports import StoredLog
from ...subjects import MESSAGE_ID, Stream
from .check import Violation
from .decide_again import DecideAgain, Input

AGAIN: Final = "AGAIN"
"""The invariant of these findings."""
PROMISE: Final = "each commit, decided again from the fold before it and the causes that it names, has the same events"


async def decided_again(
    commits: CommitReader,
    inputs: StoredLog,
    stages: Callable[[], Sequence[BoundStage]],
    key: bytes,
    *,
    until: datetime | None = None,
) -> AsyncIterator[Violation]:
    """Yield each decision of a log that a fresh process makes otherwise.

    A missing input is no difference.

    `inputs`: the streams of inputs, with their archive. `stages` returns new stages, with the settings of the installation. `key`: the key of the
    installation. `until`: the time (UTC) of the last commit.

    Raises:
        UnknownFormat: this version cannot read the log.
    """
    seal, head, again = await commits.seal(), LogHead(commits.key), DecideAgain(stages, key)
    async with aclosing(commits.bodies()) as bodies:
        async for body in bodies:
            if until is not None and body.time >= until:
                return
            head, commit = seal.read(head, body.sequence, body.body)
            if isinstance(commit, Commit):
                for one in again.take(commit, await _read(inputs, again.inputs_of(commit))):
                    reason = f"{one.stage} decided it on {one.cause}, but {one.reason}"
                    yield Violation(AGAIN, f"event {one.number:,} of commit {body.sequence:,}", reason)


async def _read(stored: StoredLog, wanted: set[Input]) -> dict[Input, list[Recorded[Message]]]:
    """Return inputs by stream and sequence, as far as they are stored.

    The inputs of a stream are read in one request.
    """
    found: dict[Input, list[Recorded[Message]]] = {}
    for source in sorted({source for source, _ in wanted}):
        places = [place for of, place in wanted if of == source]
        async for portion in stored.messages(Stream(source), after=min(places) - 1, upto=max(places)):
            for one in portion:
                if (source, one.sequence) in wanted:
                    message = decode(one.subject, one.body)
                    message_id = one.headers.get(MESSAGE_ID)
                    recorded = Recorded(message, one.subject, one.sequence, one.time, message_id)
                    found[source, one.sequence] = list(listed(recorded))
    return found
