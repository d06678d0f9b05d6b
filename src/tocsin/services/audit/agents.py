"""Agents: what the log says of each process is a possible life.

Memory: the last event of each agent that is not forgotten.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from ...domain.events import (
    AgentDrainStarted,
    AgentEnded,
    AgentFact,
    AgentFellSilent,
    AgentForgotten,
    AgentRegistered,
    Message,
    Recorded,
)
from . import check
from .check import Handler, Taken
from .report import Debt

_REGISTERED: Final = "registered"
_BEFORE: Final[Mapping[type[Message], frozenset[str]]] = {
    AgentFellSilent: frozenset({_REGISTERED}),
    AgentEnded: frozenset({_REGISTERED}),
    AgentDrainStarted: frozenset({_REGISTERED}),
    AgentForgotten: frozenset({"lost", "ended"}),
    AgentRegistered: frozenset({"", _REGISTERED, "lost"}),
}
"""The states in which an event may follow; empty: nothing is known of the agent."""
_AFTER: Final[Mapping[type[Message], str]] = {
    AgentFellSilent: "lost",
    AgentEnded: "ended",
    AgentRegistered: _REGISTERED,
    AgentForgotten: "",
}


class Agents:
    """Judges the events of each process by those before it."""

    def __init__(self, *, is_whole: bool = True) -> None:
        """Set `is_whole` if the log is read from its beginning."""
        self._is_whole = is_whole
        self._states: dict[tuple[str, str], str] = {}

    def handlers(self) -> Mapping[type[Message], Handler]:
        """See `Check`."""
        return dict.fromkeys(_BEFORE, self._take)

    def debts(self) -> Iterator[Debt]:
        """See `Check`."""
        yield from ()

    def _take(self, recorded: Recorded[AgentFact]) -> Taken:
        fact, kind = recorded.message, type(recorded.message)
        key = (fact.name, fact.agent_id)
        state = self._states.get(key)
        if state is None:
            state = "" if self._is_whole else None
        if state is not None and state not in _BEFORE[kind]:
            reason = f"`{kind.model_fields['type'].default}` follows although it is {state or 'not registered'}"
            yield check.violation("I3", f"agent {fact.name} {fact.agent_id}", reason, recorded)
        after = _AFTER.get(kind, state or _REGISTERED)
        if after:
            self._states[key] = after
        else:
            self._states.pop(key, None)
