"""Decisions of operators about events that this version cannot read."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from .... import subjects
from ....domain.events import Voided
from ....subjects import DecodeError
from ..client.names import Names
from .direct_get import DirectGet
from .message_reader import MessageReader

P = ParamSpec("P")
R = TypeVar("R")


class SetAside:
    """Looks up whether an operator set an unreadable event aside."""

    def __init__(self, ledger: DirectGet, names: Names, messages: MessageReader) -> None:
        """`ledger`: the stream of the ledger."""
        self._ledger = ledger
        self._names = names
        self._messages = messages

    async def learn(self, error: DecodeError) -> bool:
        """Return whether an operator set an unreadable event aside.

        From then on, readers of this process skip it.

        Raises:
            LogUnavailable: the log did not answer.
        """
        unreadable = error.stored
        if unreadable is None or subjects.guard_of(unreadable.subject) is None:
            return False
        wire_subject = self._names.to_wire(subjects.voided(unreadable.stream, unreadable.sequence))
        stored = await self._ledger.last(wire_subject)
        if stored is None:
            return False
        try:
            decision = self._messages.recorded(stored).message
        except DecodeError:
            return False
        if isinstance(decision, Voided):
            subjects.set_aside(decision)
        return subjects.is_set_aside(unreadable)


class Reader(Protocol):
    """An object whose reads skip what operators set aside."""

    set_aside: SetAside


S = TypeVar("S", bound=Reader)


def skips_set_aside(
    read: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Read again after an unreadable event turns out to be set aside."""

    @wraps(read)
    async def skipping(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await read(self, *args, **kwargs)
        except DecodeError as error:
            unreadable = error
        with subjects.learning():
            while await self.set_aside.learn(unreadable):
                try:
                    return await read(self, *args, **kwargs)
                except DecodeError as error:
                    unreadable = error
        raise unreadable

    return skipping
