"""Unique keys (I1 to I4): one job has a key, and begins with it.

Memory: the open executions that have a key, and the unique requests that nothing has become of.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from ...domain.events import (
    OPEN_STATES,
    Cancelled,
    Completed,
    Enqueued,
    ExecutionFact,
    Failed,
    KeyTaken,
    Recorded,
    Skipped,
)
from ...domain.uniqueness import MAX_HOLDERS
from . import check
from .check import Check, Debt, Key, Proof, Taken, on

_ALWAYS_OPEN: Final = frozenset(OPEN_STATES) - {"pending"}
"""The states of open jobs. No job is `pending`."""


class UniqueKeys(Check):
    """Judges who takes a key, and when."""

    def __init__(self, since: datetime | None = None) -> None:
        super().__init__(since)
        self._holders: dict[tuple[str, str], dict[str, Recorded[KeyTaken]]] = {}
        """The open executions with a key, by job and key."""
        self._key_of: dict[Key, tuple[str, str]] = {}
        self._replaced: dict[Key, Proof] = {}
        """Open executions that another replaced."""
        self._requests: dict[Key, Proof] = {}
        """Unique requests whose execution has no key yet."""
        self._decided: set[Key] = set()
        """Executions with a key whose request did not come yet."""

    def debts(self) -> Iterator[Debt]:
        for (job, execution_id), proof in self._replaced.items():
            entity = check.execution(job, execution_id)
            yield Debt("I1", entity, "another job replaced it, and it is open", proof.time, facts=(proof,))
        for (job, execution_id), proof in self._requests.items():
            if self._since is None or proof.time >= self._since:
                entity = check.execution(job, execution_id)
                yield Debt("I2", entity, "it is unique, and did not take its key", proof.time, facts=(proof,))

    @on(Enqueued)
    def _enqueued(self, recorded: Recorded[Enqueued]) -> None:
        request = recorded.message
        if request.unique is not None:
            key = request.definition.name, request.execution_id
            if key in self._decided:
                self._decided.discard(key)
            else:
                self._requests[key] = Proof.of(recorded)

    @on(KeyTaken)
    def _taken(self, recorded: Recorded[KeyTaken]) -> Taken:
        fact = recorded.message
        holders = self._holders.setdefault((fact.job, fact.key), {})
        named = {other.execution_id for other in fact.others}
        entity = check.entity(fact)
        if fact.execution_id in holders:
            yield check.violation("I4", entity, "it took its key twice", holders[fact.execution_id], recorded)
        for execution_id, earlier in holders.items():
            if self._excludes(fact, earlier.message) and execution_id not in fact.replaces:
                yield check.violation("I1", entity, f"it took the unique key of {execution_id}", earlier, recorded)
            elif execution_id not in named and len(named) < MAX_HOLDERS - 1:
                yield check.violation(
                    "I1", entity, f"it took a key without regard to {execution_id}", earlier, recorded
                )
        if self._is_whole and (unknown := set(fact.replaces) - named):
            yield check.violation("I3", entity, f"it replaces {', '.join(sorted(unknown))} without the key", recorded)
        for execution_id in fact.replaces:
            if execution_id in holders:
                self._replaced[fact.job, execution_id] = Proof.of(recorded)
        holders[fact.execution_id] = recorded
        self._key_of[check.key_of(fact)] = fact.job, fact.key
        self._decide(check.key_of(fact))

    def _excludes(self, fact: KeyTaken, earlier: KeyTaken) -> bool:
        """Return whether a job was a duplicate of an open one in any state."""
        is_past = fact.period is not None and fact.enqueued_at - earlier.enqueued_at >= timedelta(seconds=fact.period)
        return _ALWAYS_OPEN.issubset(fact.states) and not is_past

    @on(Completed, Failed, Cancelled, Skipped)
    def _ended(self, recorded: Recorded[ExecutionFact]) -> None:
        fact = recorded.message
        if isinstance(fact, Skipped) and fact.reason == "duplicate" and check.key_of(fact) not in self._key_of:
            self._decide(check.key_of(fact))
        self._replaced.pop(check.key_of(fact), None)
        if (key := self._key_of.pop(check.key_of(fact), None)) is not None:
            del self._holders[key][fact.execution_id]
            if not self._holders[key]:
                del self._holders[key]

    def _decide(self, key: Key) -> None:
        if self._requests.pop(key, None) is None:
            self._decided.add(key)
