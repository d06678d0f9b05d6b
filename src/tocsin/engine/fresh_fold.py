"""A fold that is made again from the log, for a decision that failed on the fold of the process."""

from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from .. import subjects
from ..domain.commit import Commit, LogHead, Seal
from ..domain.events import Recorded
from ..domain.log_events import decode, is_log_event
from ..ports.commit_log import Bodies, CommitLog
from .commit_writer import Chain
from .fold import Fold

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


async def load_fold(log: CommitLog, partition: int, seal: Seal, begin: LogHead, end: LogHead) -> Fold:
    """Return the fold of all commits between two heads.

    Raises:
        LogUnavailable: the log did not answer.
    """
    chain, fold = Chain(seal, begin), Fold()
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


def apply(fold: Fold, commit: Commit) -> None:
    """Fold a commit."""
    for stage, sources in commit.taken.items():
        for source, taken in sources.items():
            fold.take(stage, source, taken)
    for number, event in enumerate(commit.events, commit.first):
        if not is_log_event(event.subject):
            message = subjects.decode(event.subject, bytes(event.body))
            fold.evolve(Recorded(message, event.subject, number, commit.at))
        elif (change := decode(event)) is not None:
            fold.evolve_terms(change, writer=commit.writer, number=number, at=commit.at)
    fold.journal.keep()
