"""The places at which a process begins to read the log of commits."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from .. import telemetry
from ..domain.commit import LogHead
from ..engine.fold import Fold
from ..engine.heads import SharedHeads
from ..engine.scope_numbers import ScopeNumbers
from ..engine.snapshots import Loaded, Snapshots
from ..engine.stage import BoundStage
from ..ports.commit_log import CommitLog

_log = telemetry.get_logger("tocsin")


class Start(NamedTuple):
    """A place at which a process can begin."""

    fold: Fold
    """The fold up to `number`."""
    head: LogHead
    number: int
    """The number of the newest event before the events that the process shows."""
    earlier: tuple[LogHead, ...] = ()
    named: str | None = None
    """The digest of a snapshot by which a later commit proves this place; None: it is proved."""
    snapshot: Loaded | None = None

    @property
    def is_genuine(self) -> bool:
        """Return whether a commit proved this place, once the log is read from there."""
        return self.named is None or self.named in self.fold.snapshots

    def refuse(self) -> None:
        place = {"sequence": self.head.sequence, "number": self.number}
        _log.warning("snapshot that no commit names, refused", action="snapshot-refused", **place)


class LogStarts:
    """Finds the places at which processes of a partition can begin."""

    def __init__(
        self, log: CommitLog, partition: int, beginning: LogHead, snapshots: Snapshots | None, heads: SharedHeads | None
    ) -> None:
        """`beginning`: the head before the first commit.

        None: the installation has no snapshots, or no heads that leaders show.
        """
        self._log = log
        self._partition = partition
        self._beginning = beginning
        self._snapshots = snapshots
        self._heads = heads

    async def find(self, stages: Sequence[BoundStage], key: bytes, *, folds: bool) -> AsyncGenerator[Start, None]:
        """Yield places to try, the best first; the last is the beginning of the log.

        A process that folds begins with the fold of a snapshot. Another begins at the newest head that a leader shows, or else at
        the place of a snapshot. `key`: the key of the fold.

        Raises:
            LogUnavailable: the log did not answer.
        """
        starts = self._of_stages(frozenset(stage.name for stage in stages)) if folds else self._of_readers()
        async with aclosing(starts):
            async for start in starts:
                yield start
        yield Start(Fold(key) if folds else ScopeNumbers(0), self._beginning, 0)

    async def _of_stages(self, stages: frozenset[str]) -> AsyncGenerator[Start, None]:
        if self._snapshots is None:
            return
        async with aclosing(self._snapshots.candidates(stages)) as candidates:
            async for loaded in candidates:
                earlier = (self._beginning, *loaded.fold.heads)
                yield Start(loaded.fold, loaded.start, loaded.head.number, earlier, loaded.digest, loaded)

    async def _of_readers(self) -> AsyncGenerator[Start, None]:
        if self._heads is not None and (heads := await self._heads.load(self._log, self._partition)):
            newest = heads[-1]
            yield Start(ScopeNumbers(newest.number), newest, newest.number, (self._beginning, *heads[:-1]))
        for place in () if self._snapshots is None else await self._snapshots.places():
            head = place.head.log
            yield Start(ScopeNumbers(head.number), head, head.number, (self._beginning,), place.digest)
