"""Instants of many jobs: their number by time, and herds that fire together.

Jobs with equal schedules share their instants, so that the cost grows with the number of different schedules.
"""

import re
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from heapq import merge
from itertools import chain, islice, pairwise
from typing import Final, TypeAlias

from pydantic import ConfigDict
from typing_extensions import override

from ..domain.access import Owned, audience_of
from ..domain.ledger import schedule_of
from ..domain.schedule import Schedule, parse
from .calculations import Effort
from .jobs import Job
from .jobs.job_follower import JobFollower

MAX_HERDS: Final = 20
MAX_NAMES: Final = 10
"""Jobs of a herd that are named."""


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
        # Without intervals any anchor does; that of a member would outlive the member.
        group = self._groups.setdefault(place, _Group(schedule, anchor or datetime.fromtimestamp(0, UTC)))
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


MAX_SUGGESTIONS: Final = MAX_NAMED
MAX_COUNTED: Final = 1_000_000
"""Instants of a job that are counted in a bucket: more than a week with an instant every second has."""
FEW: Final = 8
"""Instants after which those of a schedule are counted: most schedules have fewer, and to count costs as much as to list them."""
AT_ONCE: Final = 64
"""Instants between two readings of the processor time."""
_MOVABLE: Final = re.compile(r"([0-9]{1,2})((?:\s+\S+){4})")
"""A cron expression of five fields with one minute."""
_HOUR_MINUTES: Final = 60
_JUST_BEFORE: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class DensityBucket:
    """The number of instants of all jobs from a time on."""

    start: datetime
    count: int


@dataclass(frozen=True, slots=True)
class Herd:
    """Jobs that fire at the same second."""

    at: datetime
    """The first of these seconds."""
    count: int
    """The number of jobs."""
    jobs: tuple[str, ...]
    """The first ten of them."""
    times: int
    """The number of seconds at which exactly these jobs fire."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A schedule with equal frequency at a minute with fewer instants."""

    job: str
    schedule: str
    suggested: str


@dataclass(frozen=True, slots=True)
class ScheduleDensity:
    """The instants of all jobs from now on."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)

    start: datetime
    until: datetime
    buckets: tuple[DensityBucket, ...]
    herds: tuple[Herd, ...]
    """The 20 largest herds. Jobs that fire more than once a minute are in none."""
    suggestions: tuple[Suggestion, ...]
    """Up to 50 schedules that would make the herds smaller."""
    truncated: bool
    """The calculation takes longer than a second, and leaves out the jobs with the rarest schedules.

    Or the server has just started, and has not read all jobs yet.
    """


def density(
    groups: Sequence[ScheduleGroup],
    now: datetime,
    window: timedelta,
    buckets: int,
    threshold: int,
    effort: Effort,
    *,
    is_complete: bool = True,
) -> ScheduleDensity:
    """Return the instants of jobs from now on. A herd has at least `threshold` jobs.

    `is_complete`: all jobs are in `groups`.
    """
    until = now + window
    starts = [now + window * number / buckets for number in range(buckets)]
    edges = [now, *(start - _JUST_BEFORE for start in starts[1:]), until]
    counts, seconds = [0] * buckets, defaultdict[datetime, list[int]](list)
    is_truncated, most = not is_complete, window // timedelta(minutes=1) + 2  # at least once a minute
    for number, group in enumerate(groups):
        if is_truncated := effort.is_spent() or is_truncated:
            break
        instants = _instants(group, now, until)
        first = list(islice(instants, FEW))
        if len(first) == FEW and group.schedule.count(now, until, anchor=group.anchor, most=most) >= most:
            is_truncated = not _count(group, edges, counts, effort)
            continue
        for place, at in enumerate(chain(first, instants), 1):
            counts[bisect_left(edges, at) - 1] += group.count
            seconds[at].append(number)
            if place % AT_ONCE == 0 and effort.is_spent():
                is_truncated = True
                break
    herds = _herds(groups, seconds, threshold)
    return ScheduleDensity(
        start=now,
        until=until,
        buckets=tuple(map(DensityBucket, starts, counts)),
        herds=tuple(herd for herd, _ in herds),
        suggestions=tuple(_suggestions(groups, herds, seconds, now, until)),
        truncated=is_truncated,
    )


def _instants(group: ScheduleGroup, now: datetime, until: datetime) -> Iterator[datetime]:
    at = group.schedule.next_after(now, anchor=group.anchor)
    while at is not None and at <= until:
        yield at
        at = group.schedule.next_after(at, anchor=group.anchor)


def _count(group: ScheduleGroup, edges: Sequence[datetime], counts: list[int], effort: Effort) -> bool:
    """Add the instants of a group to each bucket; False: time was too short."""
    for number, (begin, end) in enumerate(pairwise(edges)):
        if effort.is_spent():
            return False
        count = group.schedule.count(begin, end, anchor=group.anchor, most=MAX_COUNTED)
        counts[number] += count * group.count
    return True


def _herds(
    groups: Sequence[ScheduleGroup], seconds: Mapping[datetime, Sequence[int]], threshold: int
) -> list[tuple[Herd, tuple[int, ...]]]:
    times: dict[tuple[int, ...], list[datetime]] = defaultdict(list)
    for at, numbers in seconds.items():
        if len(numbers) > 1 or groups[numbers[0]].count >= threshold:
            times[tuple(numbers)].append(at)
    herds: list[tuple[int, datetime, tuple[int, ...]]] = []
    for numbers, of_herd in times.items():
        count = sum(groups[number].count for number in numbers)
        if count >= threshold:
            herds.append((count, min(of_herd), numbers))
    herds.sort(key=lambda herd: (-herd[0], herd[1]))
    return [
        (Herd(at, count, tuple(sorted(names)[:MAX_NAMES]), len(times[numbers])), numbers)
        for count, at, numbers in herds[:MAX_HERDS]
        for names in [[name for number in numbers for name in groups[number].jobs[:MAX_NAMES]]]
    ]


def _suggestions(
    groups: Sequence[ScheduleGroup],
    herds: Sequence[tuple[Herd, tuple[int, ...]]],
    seconds: Mapping[datetime, Sequence[int]],
    now: datetime,
    until: datetime,
) -> Iterator[Suggestion]:
    """Yield schedules that move jobs of herds to the quietest minutes of their hour."""
    load: Counter[int] = Counter(dict.fromkeys(range(_HOUR_MINUTES), 0))
    for at, numbers in seconds.items():
        load[at.minute] += sum(groups[number].count for number in numbers)
    moved: set[str] = set()
    for herd, numbers in herds:
        for number in numbers:
            group = groups[number]
            for job in group.jobs:
                if len(moved) == MAX_SUGGESTIONS:
                    return
                if job in moved:
                    continue
                minute = _quietest(load, herd.at.minute, herd.times)
                suggested = None if minute is None else _moved(group, herd.at.minute, minute, now, until)
                if minute is None or suggested is None:
                    break
                moved.add(job)
                load[herd.at.minute] -= herd.times
                load[minute] += herd.times
                yield Suggestion(job, group.schedule.text, suggested)


def _quietest(load: Mapping[int, int], minute: int, times: int) -> int | None:
    """Return the minute with the fewest instants.

    None: with `times` more, it would be as busy as `minute`.
    """
    quietest = min(load, key=lambda other: (load[other], (other - minute) % _HOUR_MINUTES))
    return quietest if load[quietest] + times < load[minute] else None


def _moved(group: ScheduleGroup, old: int, new: int, now: datetime, until: datetime) -> str | None:
    """Return the schedule of a group at another minute; None: it cannot be moved.

    Both minutes are those of an hour in UTC.
    """
    schedule = group.schedule
    expressions = schedule.expressions
    match = _MOVABLE.fullmatch(expressions[0]) if len(expressions) == 1 else None
    if match is None or schedule.starts_at is not None or schedule.ends_at is not None:
        return None
    local = (int(match[1]) + new - old) % _HOUR_MINUTES
    suggested = f"{local}{match[2]}"
    moved = parse(suggested, schedule.timezone, dst=schedule.dst, days=schedule.days)
    frequency = [rule.count(now, until, anchor=group.anchor) for rule in (schedule, moved)]
    is_equal = abs(frequency[0] - frequency[1]) <= 1  # one instant may move over an end of the window
    return suggested if is_equal else None
