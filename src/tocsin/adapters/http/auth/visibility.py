"""Who may see what became of a job, whether or not it is still registered: its last definition says."""

from collections import OrderedDict
from typing import Final

from .... import subjects
from ....domain.access import Permission, Principal
from ....domain.definition import JobDefinition
from ....domain.events import Defined
from ....ports import Clock, EventLog

REMEMBERED: Final = 2.0
"""Seconds for which a job's viewers are believed, when many facts or rows are looked at."""
_CAPACITY: Final = 10_000


class LastDefinition:
    """What a job's newest `defined` fact says of whose it is. Implements `access.Owned`."""

    def __init__(self, fact: Defined) -> None:
        """Of a fact."""
        self.definition: JobDefinition = fact.definition
        is_first = fact.created_at is None
        self.created_by = fact.by.identity if is_first and fact.by else fact.created_by


class Visibility:
    """Tells whether somebody may see what became of a job."""

    def __init__(self, log: EventLog, clock: Clock) -> None:
        """Reads the log."""
        self._log = log
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, LastDefinition | None]] = OrderedDict()

    async def reaches(self, caller: Principal, job: str) -> bool:
        """Whether they may; a job that was never defined hides nothing."""
        if caller.may(Permission.ADMINISTER):
            return True
        found = await self._definition(job)
        return caller.may(Permission.READ) if found is None else caller.may_see(found)

    async def permits(self, caller: Principal, permission: Permission, job: str) -> bool:
        """Whether they may do something with the executions of a job."""
        if caller.may(Permission.ADMINISTER):
            return True
        found = await self._definition(job)
        return caller.may(permission) if found is None else caller.may_with(permission, found)

    async def _definition(self, job: str) -> LastDefinition | None:
        now = self._clock.monotonic()
        read_at, found = self._known.get(job, (-REMEMBERED, None))
        if now - read_at < REMEMBERED:
            return found
        recorded = await self._log.last(subjects.definition(job))
        fact = recorded.message if recorded else None
        found = LastDefinition(fact) if isinstance(fact, Defined) else None
        self._known[job] = now, found
        if len(self._known) > _CAPACITY:
            self._known.popitem(last=False)
        return found
