"""The end of a partition's log in one process.

It has a chain that recognizes genuine commits, and appends under its guard.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

import msgspec

from .. import telemetry
from ..domain.commit import Commit, CommitDraft, LogHead, Seal
from ..ports import Clock, LogUnavailable, MessageTooLarge, RequestRefused
from ..ports.commit_log import CommitLog, CommitRefused, StoredBody
from .heads import Heads

PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Pauses before a body is sent again; the last pause repeats."""

_log = telemetry.get_logger("tocsin.engine")


class StoredCommit(NamedTuple):
    """A genuine commit, and the message that holds it."""

    stored: StoredBody
    commit: Commit


class Appended(NamedTuple):
    """The outcome of an append.

    `sequence` is the sequence of the writer's own commit; None: another commit was stored first, and its decisions must be made again.
    `others` are the commits of other writers that were stored since, oldest first, after the writer's own.
    """

    sequence: int | None
    others: tuple[StoredCommit, ...] = ()


OnForeign: TypeAlias = Callable[[StoredBody, str], None]
"""Takes a foreign message of the log, and the reason."""


class Chain:
    """The commits of a partition after a head, each read once."""

    def __init__(
        self,
        seal: Seal,
        head: LogHead,
        on_foreign: OnForeign | None = None,
        earlier: Iterable[LogHead] = (),
    ) -> None:
        """`head`: the beginning of the chain, as a snapshot or a saved place names it.

        `earlier`: heads before it.

        `on_foreign` takes each foreign message, and the reason.
        """
        self.seal = seal
        self.head = head
        self.newest = head
        """The head after the newest genuine commit."""
        self.heads = Heads([*earlier, head])
        self._on_foreign = on_foreign
        self._awaited: list[tuple[int, asyncio.Future[None]]] = []
        """Sequences that parts of the process wait for."""

    def advance(self, head: LogHead) -> None:
        """Go on to the head after a genuine commit."""
        self.newest = head
        self.heads.note(head)
        self._move(head)

    async def reached(self, sequence: int) -> None:
        """Wait until the message with a sequence was taken."""
        if self.head.sequence < sequence:
            self._awaited.append((sequence, reached := asyncio.get_running_loop().create_future()))
            await reached

    def _move(self, head: LogHead) -> None:
        self.head = head
        for sequence, reached in self._awaited:
            if sequence <= head.sequence and not reached.done():
                reached.set_result(None)
        self._awaited = [awaited for awaited in self._awaited if not awaited[1].done()]

    def take(self, stored: StoredBody) -> Commit | None:
        """Return the commit in the next message; None: it is foreign, or was taken before.

        Raises:
            UnknownFormat: this process cannot read on.
        """
        if stored.sequence <= self.head.sequence:
            return None
        head, content = self.seal.read(self.head, stored.sequence, stored.body)
        if isinstance(content, Commit):
            self.advance(head)
            return content
        self._move(head)
        if self._on_foreign is not None:
            self._on_foreign(stored, content.reason)
        return None


class CommitWriter:
    """Appends the commits of one process to a partition, one at a time."""

    def __init__(self, log: CommitLog, partition: int, chain: Chain, clock: Clock) -> None:
        self._log = log
        self._partition = partition
        self.chain = chain
        self._clock = clock
        self.unanswered_since: float | None = None
        """The monotonic time (seconds) since which the log has not answered; None: it answers."""
        self._reason = ""

    def is_silent_for(self, seconds: float) -> bool:
        """Return whether the log has not answered for so long."""
        return self.unanswered_since is not None and self._clock.monotonic() - self.unanswered_since >= seconds

    @property
    def unanswered(self) -> tuple[str, float] | None:
        """The reason why a commit is not answered, and the seconds since it was sent.

        None: no commit waits for an answer.
        """
        since = self.unanswered_since
        return None if since is None else (self._reason, self._clock.monotonic() - since)

    async def catch_up(self) -> None:
        """Wait until the chain has everything that is stored at this moment.

        Raises:
            LogUnavailable: there was no answer.
        """
        while (stored := await self._log.next(self._partition, after=self.chain.head.sequence)) is not None:
            await self.chain.reached(stored.sequence)

    async def append(self, draft: CommitDraft) -> Appended:
        """Store the commit that follows the chain's head.

        The same bytes are sent until they are stored, or until another commit is stored first.

        A lost answer is no reason to decide again: the commit may be stored. Only a commit that is read after the expected sequence is a
        reason. Foreign messages alone change nothing: the same bytes follow them.

        Raises:
            UnknownFormat: the log has a commit that this process cannot read.
            MessageTooLarge: the server accepts no message of this size.
        """
        tries = 0
        while True:
            expect = self.chain.head.sequence
            try:
                sequence = await self._log.append(self._partition, draft.body, expect=expect)
            except CommitRefused as refusal:
                self.unanswered_since = None
                if (appended := await self._read_on(draft.body, refusal)) is not None:
                    return appended
                if self.chain.head.sequence > expect:
                    continue  # foreign messages only
            except MessageTooLarge:
                raise
            except (LogUnavailable, RequestRefused) as error:
                self.unanswered_since = (
                    self._clock.monotonic() if self.unanswered_since is None else self.unanswered_since
                )
                self._reason = str(error)
                _log.warning("commit not answered; sending it again", action="commit-unanswered", error=str(error))
            else:
                self.unanswered_since = None
                self.chain.advance(msgspec.structs.replace(draft.after, sequence=sequence))
                return Appended(sequence)
            await self._clock.sleep(PAUSES_S[min(tries, len(PAUSES_S) - 1)])
            tries += 1

    async def _read_on(self, body: bytes, refusal: CommitRefused) -> Appended | None:
        """Read the commits that were stored since.

        None: no commit was stored, so the same body is sent again.
        """
        if refusal.last is not None and refusal.last < self.chain.head.sequence:
            return None  # a leader that lags
        own: int | None = None
        others: list[StoredCommit] = []
        while (stored := await self._next()) is not None:
            commit = self.chain.take(stored)
            if commit is None:
                continue
            if stored.body == body:
                own = stored.sequence
            else:
                others.append(StoredCommit(stored, commit))
        return Appended(own, tuple(others)) if own is not None or others else None

    async def _next(self) -> StoredBody | None:
        try:
            return await self._log.next(self._partition, after=self.chain.head.sequence)
        except LogUnavailable:
            return None
