"""Decisions of operators in one scope of the ledger."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias, TypeVar

from ..domain.events import Message, Recorded
from ..ports import EventLog, LogUnavailable, OutdatedState

TRIES: Final = 5
"""Tries to append a decision while other operators or stages decide in the scope."""

Take: TypeAlias = Callable[[Sequence[Message]], Awaitable[None]]
"""Takes the room for events that are about to be stored, or refuses them."""


async def unlimited(_: Sequence[Message]) -> None:
    """Take no room: there is no limit."""


F = TypeVar("F", bound=Message)
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
