"""Decisions of operators in one scope of the ledger."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from ..domain.events import Actor, Message, Recorded
from ..ports import EventLog, LogUnavailable, OutdatedState, SequenceConflict

TRIES: Final = 5
"""Tries to append a decision while other operators or stages decide in the scope."""

Take: TypeAlias = Callable[[Sequence[Message]], Awaitable[None]]
"""Takes the room for events that are about to be stored, or refuses them."""


async def unlimited(_: Sequence[Message]) -> None:
    """Take no room: there is no limit."""


class Versioned(Protocol):
    """A declaration; 0: none was made."""

    @property
    def version(self) -> int:
        """The sequence of its event."""


F = TypeVar("F", bound=Message)
V = TypeVar("V")
W = TypeVar("W")
Decide: TypeAlias = Callable[[Sequence[Recorded[Message]]], Awaitable[Sequence[F]]]


async def decide(log: EventLog, scope: str, decision: Decide[F], *, take: Take = unlimited) -> Sequence[F]:
    """Decide by the events of a scope; store and return the event, if any.

    `take` takes the room for the event.

    Raises:
        LogUnavailable: the log did not answer, or other writers were faster each time.
    """
    for _ in range(TRIES):
        stored = await log.load(scope)
        facts = await decision(stored)
        if facts:
            await take(facts)
            take = unlimited
        try:
            for fact in facts:
                await log.append(fact, expect=stored[-1].sequence if stored else 0)
        except OutdatedState:
            continue
        return facts
    raise LogUnavailable(f"{scope}: other writers changed it {TRIES} times")


class DeclaredDocument(ABC, Generic[V, W]):
    """A declaration of an installation; each version is one event with all of it.

    A subclass has the scope of its events, reads the newest version, and decides on the next.
    """

    _scope: str

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def newest(self) -> V:
        """Return the newest version.

        Raises:
            LogUnavailable: the log did not answer.
        """
        return self._read(await self._log.load(self._scope))

    async def apply(
        self,
        wanted: Iterable[W],
        *,
        check: Callable[[V], None] = lambda newest: None,  # noqa: ARG005 - any version will do
        by: Actor | None = None,
        reason: str | None = None,
    ) -> bool:
        """Replace the whole declaration; return whether that changed anything.

        `check` raises its own error if the newest version must not be replaced.

        Raises:
            WrongShardMap, WrongNamespaces: a part is not valid, or there are too many.
            LogUnavailable: the log did not answer.
        """
        parts = tuple(wanted)

        async def facts(stored: Sequence[Recorded[Message]]) -> Sequence[Message]:
            known = self._read(stored)
            check(known)
            return self._define(known, parts, by, reason)

        return bool(await decide(self._log, self._scope, facts))

    @abstractmethod
    def _read(self, stored: Sequence[Recorded[Message]]) -> V:
        """Return the newest version."""

    @abstractmethod
    def _define(self, known: V, wanted: tuple[W, ...], by: Actor | None, reason: str | None) -> Sequence[Message]:
        """Return the event of the next version, if it differs."""


def has_version(what: str, expected: int) -> Callable[[Versioned], None]:
    """Return a check that raises `SequenceConflict` for other versions.

    `what` has changed then, such as `the shard map`. `expected`: 0: none must have been declared.
    """

    def check(newest: Versioned) -> None:
        if newest.version != expected:
            raise SequenceConflict(
                f"{what} changed: the expected version is {expected}, and the newest is {newest.version}. "
                "Another operator was faster; read it again."
            )

    return check
