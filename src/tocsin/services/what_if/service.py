"""Answers to what-if questions, from the recorded past or for the future."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from ...domain.definition import JobDefinition, is_name
from ...domain.namespaces import declared_of
from ...domain.what_if import UNLIMITED, QueueRules, RecordedJob, Slots, WhatIfReport
from ...ports import EventLog, StoredLog
from ...ports.queries import InvalidQuery, in_utc, require_year
from ...settings import Queue
from ..calculations import Calculator, in_place
from ..explain.reader import SeesEvent
from ..jobs import Job
from ..namespaces import Namespaces
from .past import FORECAST_LOOKBACK, LOOKBACK, PastReader
from .replays import Replays, Window

MAX_DAYS: Final = 31
MAX_JOBS: Final = 1_000
MAX_SLOTS: Final = 100_000
DEFAULT_WINDOW: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Question:
    """A question: the change to try, and the window.

    Attributes:
        definitions: definitions to try, each in force for the whole window; other jobs keep theirs.
        since: the beginning of the window; None: a week before its end, or of a forecast now.
        until: the end of the window; None: now. A window after now is a forecast.
        capacity: the slots of workers, by queue; the executions of other queues start after the recorded waits.
    """

    definitions: tuple[JobDefinition, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    capacity: Mapping[str, int] = field(default_factory=dict)


class WhatIf:
    """Answers what-if questions. Nothing is changed or stored."""

    def __init__(
        self,
        log: EventLog,
        stored: StoredLog,
        calculate: Calculator = in_place,
        *,
        queues: Mapping[str, Queue] | None = None,
        requires_grant: bool = False,
    ) -> None:
        """Read from a log.

        `queues`: the settings of the queues, with their limits; `requires_grant`: agents without a grant get no tasks.
        """
        self._queues = queues or {}
        self._requires_grant = requires_grant
        self._log = log
        self._stored = stored
        self._calculate = calculate

    async def ask(self, question: Question, jobs: Collection[Job], *, may_see: SeesEvent | None = None) -> WhatIfReport:
        """Replay the window of a question.

        Args:
            question: the change to try, and the window.
            jobs: the registered jobs that the caller sees; those of a queue with a given capacity take part.
            may_see: whether the caller may see a definition event; None: every event.

        Raises:
            InvalidQuery: a field of the question is invalid, or the question is too large.
        """
        window = _window(question, await self._log.now())
        candidates = {definition.name: definition for definition in question.definitions}
        names = _names(question, candidates, jobs)
        lookback = FORECAST_LOOKBACK if window.is_forecast else LOOKBACK
        end = window.since if window.is_forecast else window.until
        reader = PastReader(self._log, self._stored, self._calculate, window.since, end, lookback, may_see)
        recorded = [await reader.job(name) for name in names]
        absences = [] if window.is_forecast else await reader.absences()
        registered = _limited({}, recorded, {}, is_forecast=True) if window.is_forecast else {}
        limited = _limited(question.capacity, recorded, candidates, is_forecast=window.is_forecast)
        notes = await self._notes(reader, question.capacity, limited)
        replays = Replays(window, recorded, absences, self._calculate, notes)
        before = (
            await replays.play({}, await self._slots(reader, {}, registered))
            if window.is_forecast
            else await self._calculate(lambda _: replays.recorded())
        )
        slots = await self._slots(reader, question.capacity, limited)
        after = await replays.play(candidates, slots)
        return await self._calculate(lambda _: replays.report(before, after, candidates))

    async def _slots(self, reader: PastReader, capacity: Mapping[str, int], limited: Mapping[str, int]) -> Slots:
        """Return limited queues with their pauses.

        A limit of a queue counts the tasks of all of its jobs, which take part only if its capacity is given.
        """
        rules = dict[str, QueueRules]()
        for queue in limited:
            pauses = await reader.pauses(queue)
            settings = self._queues.get(queue) if queue in capacity else None
            limit, bucket = (None, None) if settings is None else (settings.concurrency, settings.bucket)
            rules[queue] = QueueRules(limit, bucket, pauses)
        return Slots(limited, rules)

    async def _notes(
        self, reader: PastReader, capacity: Mapping[str, int], limited: Mapping[str, int]
    ) -> Mapping[str, Sequence[str]]:
        """Return the rules of workers that the replay does not regard, in sentences, by queue."""
        notes: dict[str, list[str]] = {queue: [] for queue in limited}
        if limited and (self._requires_grant or await reader.has_grants()):
            for queue in limited:
                notes[queue].append(
                    f"Which functions an agent may serve is not regarded: each slot of the queue {queue} serves all functions."
                )
        quotas = {
            namespace.name: namespace.max_running for namespace in (await Namespaces(self._log).newest()).namespaces
        }
        for queue in limited:
            namespace = declared_of(queue, quotas)
            if namespace is not None and quotas[namespace] is not None:
                notes[queue].append(f"The quota `max_running` of the namespace {namespace} is not regarded.")
            settings = self._queues.get(queue)
            if queue not in capacity and settings is not None and (settings.concurrency or settings.rate):
                notes[queue].append(f"The limits of the queue {queue} are not regarded, unless its capacity is given.")
        return notes


def _window(question: Question, now: datetime) -> Window:
    """Return the window of a question.

    Raises:
        InvalidQuery: the window is empty, too long, or begins before and ends after now.
    """
    until = now if question.until is None else _instant("until", question.until)
    if question.since is not None:
        since = _instant("since", question.since)
    else:
        since = now if until > now else until - DEFAULT_WINDOW
    if not since < until:
        raise InvalidQuery("since", since.isoformat(), f"must be before the end of the window, {until.isoformat()}")
    if until - since > timedelta(days=MAX_DAYS):
        raise InvalidQuery("since", since.isoformat(), f"the window may have at most {MAX_DAYS} days")
    if since < now < until:
        reason = f"a window is either past or a forecast. End it by {now.isoformat()}, or leave `since` out"
        raise InvalidQuery("until", until.isoformat(), reason)
    return Window(since, until, since >= now)


def _instant(name: str, at: datetime) -> datetime:
    require_year(name, at, at.year)
    return in_utc(name, at)


def _names(question: Question, candidates: Mapping[str, JobDefinition], jobs: Collection[Job]) -> list[str]:
    """Return the jobs that take part.

    Raises:
        InvalidQuery: the question names no job and no queue, too many jobs, or an invalid capacity.
    """
    if not candidates and not question.capacity:
        raise InvalidQuery("jobs", [], "name a job definition, or give the capacity of a queue")
    for queue, slots in question.capacity.items():
        if not is_name(queue):
            raise InvalidQuery("capacity", queue, "is not the name of a queue")
        if not 0 <= slots <= MAX_SLOTS:
            raise InvalidQuery(f"capacity.{queue}", slots, f"must be from 0 to {MAX_SLOTS:,}")
    sharing = {job.name for job in jobs if not question.capacity.keys().isdisjoint(job.definition.step_queues())}
    names = sorted({*candidates, *sharing})
    if len(names) > MAX_JOBS:
        raise InvalidQuery("jobs", len(names), f"at most {MAX_JOBS:,} jobs can be replayed together")
    return names


def _limited(
    capacity: Mapping[str, int],
    recorded: Iterable[RecordedJob],
    candidates: Mapping[str, JobDefinition],
    *,
    is_forecast: bool,
) -> dict[str, int]:
    """Return the slots of the queues in which a limit may hold tasks back.

    These are the queues with a given capacity, and those of jobs whose own limit changes. In a forecast they also are those of
    jobs with a limit, because no wait is recorded.
    """
    limited = dict(capacity)
    for job in recorded:
        registered = job.start.definition
        definition = candidates.get(job.job, registered)
        if definition is None:
            continue
        has_limit = definition.concurrency is not None
        if (registered is not None and registered.concurrency != definition.concurrency) or (is_forecast and has_limit):
            for queue in definition.step_queues():
                limited.setdefault(queue, UNLIMITED)
    return limited
