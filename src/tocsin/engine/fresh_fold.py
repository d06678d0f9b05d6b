"""A fold that is made from the log.

It is made of each commit, and again for a decision that failed on the fold of the process.
"""

from contextlib import aclosing

from ..domain.commit import Commit, LogHead, Seal
from ..domain.events import Message, Recorded
from ..domain.log_events import ABOUT_THE_LOG, decode, is_log_event
from ..ports.commit_log import CommitLog
from .broken_keys import StoredEvent
from .commit_writer import Chain
from .fold import Fold
from .snapshots import Snapshots


async def load_fold(
    log: CommitLog,
    partition: int,
    seal: Seal,
    begin: LogHead,
    end: LogHead,
    fold: Fold,
    snapshots: Snapshots | None = None,
) -> Fold | None:
    """Return the fold of the commits between two heads, from the newest named snapshot.

    `fold`: an empty fold. None: the beginning of the log is gone, and no snapshot replaces it.

    Raises:
        LogUnavailable: the log did not answer.
    """
    if snapshots is not None:
        async with aclosing(snapshots.candidates(fold.stages)) as candidates:
            async for loaded in candidates:
                if not await _fold_on(log, partition, Chain(seal, loaded.head), end, loaded.fold):
                    continue
                if loaded.digest in loaded.fold.snapshots:
                    return loaded.fold
    return fold if await _fold_on(log, partition, Chain(seal, begin), end, fold) else None


async def _fold_on(log: CommitLog, partition: int, chain: Chain, end: LogHead, fold: Fold) -> bool:
    """Fold the commits of a chain up to a head; False: they end elsewhere."""
    if chain.head.sequence >= end.sequence:
        return chain.head.digest == end.digest
    async with aclosing(log.follow(partition, after=chain.head.sequence)) as batches:
        async for batch in batches:
            for body in batch.bodies:
                if (commit := chain.take(body)) is not None:
                    apply(fold, commit)
                if chain.head.sequence >= end.sequence:
                    return chain.head.digest == end.digest
    raise AssertionError("a follower ends only when it is closed")


def apply(fold: Fold, commit: Commit) -> list[Recorded[Message] | None]:
    """Fold a stored commit, and return its events in the form for their watchers.

    None: this version cannot read it.
    """
    recorded = list[Recorded[Message] | None]()
    for stage, sources in commit.taken.items():
        for source, taken in sources.items():
            fold.take(stage, source, taken)
    for number, event in enumerate(commit.events, commit.first):
        if not is_log_event(event.subject):
            recorded.append(fold.take_event(StoredEvent(number, event.subject, commit.at, event.body)))
            continue
        recorded.append(Recorded(ABOUT_THE_LOG, event.subject, number, commit.at))
        if (change := decode(event)) is not None:
            fold.evolve_log(change, writer=commit.writer, number=number, at=commit.at)
    fold.keep(commit.at)
    return recorded
