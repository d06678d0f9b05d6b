"""The replays of one question: the same window with the recorded definitions, and with others."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from ...domain.definition import JobDefinition
from ...domain.events import Defined
from ...domain.ledger import Lookahead
from ...domain.text import counted
from ...domain.what_if import (
    Absence,
    Arrivals,
    Decision,
    ExecutionsReplay,
    Outcome,
    RecordedJob,
    Side,
    Slots,
    TimeReplay,
    WhatIfJob,
    WhatIfReport,
    compare,
    together,
)
from ...ports.queries import InvalidQuery
from ..calculations import Calculator, Effort

MAX_INSTANTS: Final = 100_000
"""Decisions on instants of a replay, for all jobs together."""
MAX_TURNS: Final = 20
"""Calculations of a second for a question, where their time is limited."""


@dataclass(frozen=True, slots=True)
class Window:
    """The window of a question: after `since`, up to `until` (UTC)."""

    since: datetime
    until: datetime
    is_forecast: bool = False


class Replays:
    """The replays of one question."""

    def __init__(
        self,
        window: Window,
        recorded: Sequence[RecordedJob],
        absences: Sequence[Absence],
        calculate: Calculator,
        notes: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Prepare the replays; `notes`: sentences on queues, for their jobs."""
        self._notes = notes or {}
        self._window = window
        self._recorded = recorded
        self._absences = absences
        self._calculate = calculate
        self._turns = 0
        self._arrivals = {job.job: Arrivals(job) for job in recorded}

    def recorded(self) -> dict[str, Side]:
        return {
            job.job: Side(
                [decision.message for decision in job.decisions], [*self._arrivals[job.job].recorded_outcomes()]
            )
            for job in self._recorded
        }

    async def play(self, candidates: Mapping[str, JobDefinition], slots: Slots) -> dict[str, Side]:
        """Replay the window with other definitions.

        Raises:
            InvalidQuery: it takes too long, or has too many instants.
        """
        lookahead, executions = Lookahead(), ExecutionsReplay(self._window.since, self._window.until, slots)
        decisions: dict[str, list[Decision]] = {}
        for job in self._recorded:
            definition = candidates.get(job.job)
            times = TimeReplay(job, definition, self._window.since, self._window.until, self._absences, lookahead)
            instants = sum(map(len, decisions.values()))
            await self._complete(times.advance, lambda times=times, before=instants: before + len(times.decided))  # type: ignore[misc]
            await self._calculate(partial(self._arrive, executions, job, times, definition))
            decisions[job.job] = [decided.fact for decided in times.decided]
        await self._complete(executions.advance, lambda: 0)
        outcomes: dict[str, list[Outcome]] = {name: [] for name in decisions}
        for outcome in executions.outcomes:
            outcomes[outcome.job].append(outcome)
        return {name: Side(facts, outcomes[name]) for name, facts in decisions.items()}

    def _arrive(
        self,
        executions: ExecutionsReplay,
        job: RecordedJob,
        times: TimeReplay,
        definition: JobDefinition | None,
        effort: Effort,
    ) -> None:
        arrivals = self._arrivals[job.job]
        executions.add_locks(job)
        executions.carry_over(arrivals.carried_over())
        for arrival in arrivals.of_window(times.decided, definition):
            executions.add(arrival)
            effort.is_spent()  # lets the event loop run meanwhile

    def report(
        self, before: Mapping[str, Side], after: Mapping[str, Side], candidates: Mapping[str, JobDefinition]
    ) -> WhatIfReport:
        reports = [self._compared(job, before[job.job], after[job.job], candidates) for job in self._recorded]
        window = self._window
        return WhatIfReport(
            window.since, window.until, window.is_forecast, together(before), together(after), tuple(reports)
        )

    def _compared(
        self, job: RecordedJob, before: Side, after: Side, candidates: Mapping[str, JobDefinition]
    ) -> WhatIfJob:
        definition, usual = candidates.get(job.job), self._arrivals[job.job].usual
        notes = [*_notes(job, definition, after, has_durations=usual.runs > 0)]
        rule = definition or job.start.definition
        queues = () if rule is None else sorted(set(rule.step_queues()))
        notes += (note for queue in queues for note in self._notes.get(queue, ()))
        return compare(job.job, before, after, usual, tried=definition is not None, notes=notes)

    async def _complete(self, advance: Callable[[Callable[[], bool]], bool], instants: Callable[[], int]) -> None:
        """Advance to the end of the window, in turns of limited time.

        Raises:
            InvalidQuery: it takes too long, or has too many instants.
        """

        def turn(effort: Effort) -> bool:
            return advance(lambda: effort.is_spent() or instants() > MAX_INSTANTS)

        while not await self._calculate(turn):
            self._turns += 1
            if instants() > MAX_INSTANTS or self._turns >= MAX_TURNS:
                limit = f"more than {MAX_INSTANTS:,} instants" if instants() > MAX_INSTANTS else "too much to calculate"
                reason = f"the window has {limit}. Choose a later time, or fewer jobs"
                raise InvalidQuery("since", self._window.since.isoformat(), reason)


def _notes(job: RecordedJob, definition: JobDefinition | None, after: Side, *, has_durations: bool) -> Iterable[str]:
    if job.start.definition is None and not job.changes:
        yield "The job has no recorded past in the window."
    registered = [fact.message.definition for fact in job.changes if isinstance(fact.message, Defined)]
    edits = sum(other != definition for other in registered)
    if definition is not None and edits:
        yield f"The given definition replaces {counted(edits, 'other definition')} of the window."
    if not has_durations and any(outcome.is_estimated for outcome in after.outcomes):
        yield "No duration is recorded: new executions take no time, so their overlaps and waits are not known."
    rule = definition or job.start.definition
    if rule is not None and (rule.depends_on or rule.acknowledgements is not None):
        yield "Executions that were not recorded wait for no other job and for no acknowledgement."
    if rule is not None and len(rule.steps()) > 1:
        yield "The job has several steps: an execution takes one slot of the queue of its first step while it runs."
