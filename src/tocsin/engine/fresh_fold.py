"""A fold that is made again from the log, for a decision that failed on the fold of the process."""

from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from .. import subjects
from ..domain.commit import Commit, LogHead, Seal
from ..domain.events import Message, Recorded
from ..domain.log_events import ABOUT_THE_LOG, decode, is_log_event
from ..ports.commit_log import Bodies, CommitLog
from .commit_writer import Chain
from .fold import Fold

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


async def load_fold(log: CommitLog, partition: int, seal: Seal, begin: LogHead, end: LogHead, fold: Fold) -> Fold:
    """Fold all commits between two heads, and return the fold. `fold`: that of the commits up to `begin`.

    Raises:
        LogUnavailable: the log did not answer.
    """
    chain = Chain(seal, begin)
    follower = cast("AsyncGenerator[Bodies]", log.follow(partition, after=begin.sequence))
    async with aclosing(follower) as batches:
        async for batch in batches:
            for body in batch.bodies:
                if chain.head.sequence >= end.sequence:
                    return fold
                if (commit := chain.take(body)) is not None:
                    apply(fold, commit)
            if chain.head.sequence >= end.sequence:
                return fold
    raise AssertionError("a follower ends only when it is closed")


def apply(fold: Fold, commit: Commit) -> list[Recorded[Message]]:
    """Fold a stored commit; return its events, as those who watch them see them."""
    recorded = list[Recorded[Message]]()
    for stage, sources in commit.taken.items():
        for source, taken in sources.items():
            fold.take(stage, source, taken)
    for number, event in enumerate(commit.events, commit.first):
        if not is_log_event(event.subject):
            message = subjects.decode(event.subject, bytes(event.body))
            recorded.append(Recorded(message, event.subject, number, commit.at))
            fold.evolve(recorded[-1])
            continue
        recorded.append(Recorded(ABOUT_THE_LOG, event.subject, number, commit.at))
        if (change := decode(event)) is not None:
            fold.evolve_log(change, writer=commit.writer, number=number, at=commit.at)
    fold.keep(commit.at)
    return recorded
