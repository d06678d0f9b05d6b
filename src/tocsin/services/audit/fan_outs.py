"""Fan-outs (I2): an occurrence goes by the map that its `due` names.

`requests` judges that each listed shard has one execution, and that no other execution begins. Memory: the versions of the map,
the occurrences of divided jobs that have not begun, and the fan-outs whose `due` or map is not taken yet.
"""

from datetime import datetime

from ...domain import ids
from ...domain.events import (
    Admitted,
    Due,
    FannedOut,
    Planned,
    Recorded,
    Requested,
    ShardsDefined,
    ShardState,
    Skipped,
)
from . import check
from .check import Check, Key, Taken, on


class FanOuts(Check):
    """Compares each fan-out with its `due` and with the map.

    The streams may come in any order.
    """

    def __init__(self, since: datetime | None = None) -> None:
        super().__init__(since)
        self._maps: dict[int, frozenset[str]] = {}
        """The active shards of each version."""
        self._newest = 0
        self._due: dict[Key, Recorded[Due]] = {}
        self._undue: dict[Key, Recorded[FannedOut]] = {}
        self._unmapped: dict[int, list[Recorded[FannedOut]]] = {}

    @on(ShardsDefined)
    def _defined(self, recorded: Recorded[ShardsDefined]) -> Taken:
        fact = recorded.message
        if self._is_whole and fact.previous != self._newest:
            reason = f"it says that it follows map {fact.previous}, and it follows {self._newest}"
            yield check.violation("I2", "shard map", reason, recorded)
        self._newest = recorded.sequence
        self._maps[recorded.sequence] = frozenset(
            shard.shard_id for shard in fact.shards if shard.state is ShardState.ACTIVE
        )
        for fanned in self._unmapped.pop(recorded.sequence, ()):
            yield from self._on_the_map(fanned)

    @on(Due)
    def _came_due(self, recorded: Recorded[Due]) -> Taken:
        due = recorded.message
        if not due.shards:
            return
        key = (due.job, ids.occurrence_id(due.job, due.scheduled_time))
        fanned = self._undue.pop(key, None)
        if fanned is None:
            self._due[key] = recorded
        else:
            yield from _compared(recorded, fanned)

    @on(FannedOut)
    def _fanned_out(self, recorded: Recorded[FannedOut]) -> Taken:
        fact = recorded.message
        if not fact.shards or len(set(fact.shards)) != len(fact.shards):
            yield check.violation("I2", check.entity(fact), "it lists no shard, or a shard twice", recorded)
        if fact.trigger == "cron":
            due = self._due.pop(check.key_of(fact), None)
            if due is None:
                self._undue[check.key_of(fact)] = recorded
            else:
                yield from _compared(due, recorded)
        if fact.map in self._maps:
            yield from self._on_the_map(recorded)
        else:
            self._unmapped.setdefault(fact.map, []).append(recorded)

    def _on_the_map(self, recorded: Recorded[FannedOut]) -> Taken:
        fact = recorded.message
        if others := sorted(set(fact.shards) - self._maps[fact.map]):
            reason = f"it runs on {', '.join(others)}, which map {fact.map} does not have as active"
            yield check.violation("I2", check.entity(fact), reason, recorded)

    @on(Planned, Admitted, Skipped)
    def _begun(self, recorded: Recorded[Requested | Skipped]) -> None:
        self._due.pop(check.key_of(recorded.message), None)


def _compared(due: Recorded[Due], fanned: Recorded[FannedOut]) -> Taken:
    if due.message.shards != fanned.message.map:
        reason = f"it goes by shard map {fanned.message.map}, and its `due` names {due.message.shards}"
        yield check.violation("I2", check.entity(fanned.message), reason, due, fanned)
