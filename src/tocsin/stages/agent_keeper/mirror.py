"""The KV bucket `agents`: it only shows the roster, and no decision rests on it."""

from typing import Final

from ... import telemetry
from ...domain.agent_record import AgentRecord
from ...ports import Clock, LogUnavailable, OutdatedState, Projections
from ...subjects import Bucket
from .roster import Entry, Roster

LOAD_INTERVAL_S: Final = 5.0
"""The least time between two entries of one process that differ only in the tasks that it holds."""

_log = telemetry.get_logger("tocsin.agent-keeper")


class Mirror:
    """Writes the entries that changed."""

    def __init__(self, projections: Projections, clock: Clock) -> None:
        self._projections = projections
        self._clock = clock
        self._shown: dict[str, tuple[AgentRecord, float]] | None = None
        """The entries that this process wrote, and when; None: the bucket was not read since it leads."""

    async def show(self, roster: Roster, *, leads: bool) -> None:
        """Write what changed, if this process leads."""
        if not leads:
            self._shown = None
            return
        try:
            await self._show(roster)
        except (LogUnavailable, OutdatedState) as error:
            self._shown = None
            _log.warning("agents not shown in the bucket", action="agents-not-shown", error=str(error))

    async def _show(self, roster: Roster) -> None:
        wanted = {
            f"{entry.name}.{entry.agent_id}": record
            for entry in roster
            if (record := record_of(entry, enabled=roster.is_enabled(entry.name))) is not None
        }
        if self._shown is None:
            stored = await self._projections.entries(Bucket.AGENTS)
            self._shown = {}
            left = stored.keys() - wanted.keys()
        else:
            left = self._shown.keys() - wanted.keys()
        for key in left:
            await self._projections.remove(Bucket.AGENTS, key)
            self._shown.pop(key, None)
        now = self._clock.monotonic()
        for key, record in wanted.items():
            if self._is_due(key, record, now):
                await self._projections.put(Bucket.AGENTS, key, record.model_dump_json().encode())
                self._shown[key] = record, now

    def _is_due(self, key: str, record: AgentRecord, now: float) -> bool:
        shown = (self._shown or {}).get(key)
        if shown is None:
            return True
        before, at = shown
        if before == record:
            return False
        return before.model_copy(update={"held": record.held}) != record or now - at >= LOAD_INTERVAL_S


def record_of(entry: Entry, *, enabled: bool) -> AgentRecord | None:
    """Return an agent as operators see it; None: it ended, or is not registered yet."""
    fact = entry.state.registered
    if fact is None or entry.state.end in {"ended", "forgotten"}:
        return None
    is_live = entry.state.is_live
    return AgentRecord(
        name=entry.name,
        agent_id=entry.agent_id,
        state=entry.state.state(enabled=enabled),
        since=entry.changed_at,
        host=fact.host,
        version=fact.version,
        labels=fact.labels,
        queues=list(fact.queues),
        functions=list(fact.functions),
        max_concurrent_jobs=fact.max_concurrent_jobs,
        held=list(entry.hold_list.held) if entry.hold_list is not None and is_live else [],
    )
