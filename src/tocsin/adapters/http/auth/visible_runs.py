"""Visibility of many executions at once, for counts."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from ....domain.access import Permission, Principal
from ....services.jobs import Job
from .visibility import UNREADABLE, Run, Visibility

MAX_LOOKUPS: Final = 200
"""Definitions that a request reads. Executions under others are left out for callers that are no administrators."""

_ANY_TIME: Final = datetime.max.replace(tzinfo=UTC)


class VisibleRuns:
    """Decides which executions a caller may see.

    Nearly all ran under the definition that is in force, whose job decides without a read.
    """

    def __init__(self, visibility: Visibility, caller: Principal, registered: Callable[[str], Job | None]) -> None:
        """`registered`: returns a registered job."""
        self._visibility = visibility
        self._caller = caller
        self.all = caller.may(Permission.ADMINISTER)
        """Whether the caller sees all executions."""
        self._registered = registered
        self._decided: dict[Run, bool] = {}

    async def __call__(self, job: str, definition: int | None, status: str, at: datetime) -> bool:
        if definition is None and status != "skipped":  # only a refused trigger has no definition
            definition = UNREADABLE
        return self.all or await self.includes(Run(job, definition, at))

    async def includes(self, run: Run) -> bool:
        """Check that the caller may see an execution or a dead letter."""
        if self.all:
            return True
        if not self._caller.reaches(run.job):
            return False
        if run.definition == 0:  # the job was not registered
            return self._caller.may(Permission.READ)
        registered = self._registered(run.job)
        if registered is not None and registered.ledger.regimes[-1].definition == run.definition:
            return self._caller.may_see(registered)
        if run.definition is not None:  # the time decides nothing
            run = Run(run.job, run.definition, _ANY_TIME)
        if run not in self._decided:
            has_lookup = len(self._decided) < MAX_LOOKUPS
            self._decided[run] = has_lookup and await self._visibility.may_see_run(self._caller, run)
        return self._decided[run]
