"""Jobs with the same instants, kept together between requests."""

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from heapq import merge
from itertools import islice
from typing import Final, TypeAlias

from typing_extensions import override

from ..domain.access import Owned, audience_of
from ..domain.ledger import schedule_of
from ..domain.schedule import Schedule
from .calculations import Effort
from .jobs import Job
from .jobs.job_follower import JobFollower

MAX_NAMED: Final = 50
"""Jobs of a group that are named."""

_Instants: TypeAlias = tuple[int, datetime | None]
"""The identity of a schedule, and the time from which its intervals count."""


@dataclass(frozen=True, slots=True)
class ScheduleGroup:
    """Jobs with the same instants."""

    schedule: Schedule
    anchor: datetime
    jobs: Sequence[str]
    """Their first names, `MAX_NAMED` at most, sorted."""
    count: int


@dataclass(slots=True)
class _Members:
    """The jobs of a group that the same identities may see."""

    example: Job
    jobs: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Group:
    schedule: Schedule
    anchor: datetime
    members: dict[Hashable, _Members] = field(default_factory=dict)


class ScheduleGroups(JobFollower):
    """Keeps the jobs whose schedules fire, by their instants.

    Jobs with equal schedules share one object.
    """

    def __init__(self) -> None:
        super().__init__()
        self._groups: dict[_Instants, _Group] = {}
        self._places: dict[str, _Instants] = {}

    def seen(
        self, jobs: Sequence[Job], sees: Callable[[Owned], bool], effort: Effort
    ) -> tuple[Sequence[ScheduleGroup], bool]:
        """Return the groups of the jobs that a caller sees, the largest first.

        The second value is False if some jobs are left out, because the effort is spent.
        """
        groups = list[ScheduleGroup]()
        with self.following(jobs, effort) as is_complete:
            for group in self._groups.values():
                seen = [members.jobs for members in group.members.values() if sees(members.example)]
                if seen:
                    first = [names[:MAX_NAMED] for names in seen]
                    named = first[0] if len(first) == 1 else list(islice(merge(*first), MAX_NAMED))
                    groups.append(ScheduleGroup(group.schedule, group.anchor, named, sum(map(len, seen))))
        return sorted(groups, key=lambda group: (-group.count, group.jobs[0])), is_complete

    @override
    def _add(self, job: Job) -> None:
        timetable = job.ledger.timetable
        if timetable is None or timetable.schedule is None or not timetable.enabled or job.ledger.is_paused:
            return
        schedule = schedule_of(timetable)
        anchor = None if schedule.interval is None else job.anchor
        place = self._places[job.name] = id(schedule), anchor
        group = self._groups.setdefault(place, _Group(schedule, anchor or job.defined_at))
        insort(group.members.setdefault(audience_of(job), _Members(job)).jobs, job.name)

    @override
    def _remove(self, job: Job) -> None:
        place = self._places.pop(job.name, None)
        if place is None:
            return
        group, audience = self._groups[place], audience_of(job)
        names = group.members[audience].jobs
        del names[bisect_left(names, job.name)]
        if not names:
            del group.members[audience]
        if not group.members:
            del self._groups[place]

    @override
    def _clear(self) -> None:
        self._groups, self._places = {}, {}
