"""`tocsin events replay`: the state of jobs and executions at a moment."""

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer
from rich.console import RenderableType
from rich.text import Text

from ...archive.stream_reader import Selection, decoded
from ...domain import events, history, ledger, lock
from ...domain.events import Message, Recorded
from ...domain.execution_record import ExecutionRecord
from ...domain.ledger import Ledger
from ...domain.lock import Lock
from ...domain.text import counted
from ...services.jobs import Job
from ...services.operations.lookup import ExecutionMatch
from ...subjects import STREAMS, DecodeError, Stream, stream_of
from ..executions import page as executions
from ..input.values import instant
from ..jobs import commands as jobs
from ..output.format import local
from ..output.tables import table
from ..runtime.errors import Exit, UsageError, no_such_job
from ..runtime.event_loop import run
from ..runtime.session import Session
from .audit import ExportFile, source

_OPEN: Final = frozenset({"pending", "running"})


@dataclass(slots=True)
class Moment:
    """Everything taken so far, folded.

    It holds the ledger and the lock of each job, the open executions, and the ids of finished executions.
    """

    facts: int = 0
    last: dict[Stream, Recorded[Message]] = field(default_factory=dict)
    """The last message of each stream."""
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    locks: dict[str, Lock] = field(default_factory=dict)
    open: dict[str, ExecutionRecord] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    ended: Counter[str] = field(default_factory=Counter)
    """The number of executions by their end."""
    dead_letters: set[tuple[str, str]] = field(default_factory=set)
    """The unresolved dead letters: (job, id)."""

    def take(self, recorded: Recorded[Message]) -> None:
        """Take one more event, each stream in its order."""
        self.facts += 1
        self.last[stream_of(recorded.subject)] = recorded
        match recorded.message:
            case events.LedgerFact(job=job):
                self.ledgers[job] = ledger.evolve(self.ledgers.get(job, ledger.initial), recorded)
            case events.ExecutionFact(execution_id=execution_id) if execution_id not in self.over:
                self._execution(recorded, execution_id)
            case events.LockFact(job=job, shard=None):
                self.locks[job] = lock.evolve(self.locks.get(job, lock.initial), recorded)
            case events.DeadLettered() | events.PoisonMessage() as kept:
                self.dead_letters.add((kept.job, kept.id))
            case events.Resolved() as resolved:
                self.dead_letters.discard((resolved.job, resolved.id))
            case _:
                pass

    def holder(self, job: str) -> str | None:
        """Return the open execution that holds the lock of a job, or None."""
        holder = self.locks.get(job, lock.initial).holder
        return None if holder is None or holder in self.over else holder

    def _execution(self, recorded: Recorded[Message], execution_id: str) -> None:
        record = history.evolve(self.open.get(execution_id), recorded)
        if record is None or record.status in _OPEN:
            if record is not None:
                self.open[execution_id] = record
            return
        self.open.pop(execution_id, None)
        self.over.add(execution_id)
        self.ended[record.status] += 1


_PLACE: Final = re.compile(rf"({'|'.join(STREAMS)}):(\d+)", re.IGNORECASE)


class Place(NamedTuple):
    """A message of a stream; messages that were stored after it are left out."""

    stream: Stream
    sequence: int


def replay(
    session: Session,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|STREAM:SEQUENCE",
            help="The moment: an instant, a duration ago, or a message such as LOG:1234.",
        ),
    ] = None,
    job: Annotated[str | None, typer.Option(help="Show this job.")] = None,
    execution: Annotated[str | None, typer.Option(metavar="ID", help="Show this execution.")] = None,
    file: ExportFile = None,
) -> None:
    """Show the state at a moment: of an execution, a job, or everything.

    Folds the events up to that moment.
    """
    if execution is not None and not all(character.isalnum() or character == "-" for character in execution):
        raise UsageError(
            f"--execution is {execution!r}: an id has only letters, digits and hyphens", code="invalid-execution-id"
        )
    match = _PLACE.fullmatch(until or "")
    place = Place(Stream(match[1].upper()), int(match[2])) if match else None
    at = None if place else instant(until, "--until", now=datetime.now(UTC))
    streams = STREAMS if execution is None else (Stream.LOG,)
    selection = Selection(streams, job, until=at, execution_id=execution)
    moment, facts = run(_read(session, file, selection, place))
    last = max((recorded.time for recorded in moment.last.values()), default=datetime.now(UTC))
    _show(session, moment, facts, selection, at or last)


async def _read(
    session: Session, file: Path | None, selection: Selection, place: Place | None
) -> tuple[Moment, list[Recorded[Message]]]:
    """Fold the log, and collect the events if one execution is selected."""
    moment, facts = Moment(), list[Recorded[Message]]()
    is_over = False
    async with source(session, file, selection) as log:
        async for message in log.messages:
            here = Place(message.stream, message.sequence)
            if is_over or (place is not None and here.stream is place.stream and here > place):
                is_over = True
                continue  # read an export to its end: only the last line proves that it is complete
            is_over = here == place
            try:
                recorded = decoded(message)
            except DecodeError:
                continue
            moment.take(recorded)
            if selection.execution_id is not None:
                facts.append(recorded)
    return moment, facts


def _show(session: Session, moment: Moment, facts: list[Recorded[Message]], selection: Selection, at: datetime) -> None:
    as_of = {
        "as_of": at,
        "facts": moment.facts,
        "last": {stream.value: r.sequence for stream, r in moment.last.items()},
    }
    head = Text(f"as of {local(at)}, after {counted(moment.facts, 'event')}{_last(moment)}", style="dim")
    if selection.execution_id is not None:
        of_it = tuple(recorded for recorded in facts if isinstance(recorded.message, events.ExecutionFact))
        if not of_it:
            raise UsageError(
                f"execution {selection.execution_id!r} did not exist at that time: check the id and --until",
                Exit.NOT_FOUND,
                code="execution-not-found",
            )
        first = of_it[0].message
        match = ExecutionMatch(getattr(first, "job", ""), selection.execution_id, of_it)
        shown = executions.ExecutionDetails.of(match)
        session.output.answer({**as_of, **executions.as_json(shown)}, lambda: [head, *executions.page(shown)])
    elif selection.job is not None:
        job = Job.of(moment.ledgers[selection.job]) if selection.job in moment.ledgers else None
        if job is None:
            raise no_such_job(selection.job, [])
        data = {**as_of, **jobs.details(job, at), "ledger": _ledger(moment, job), **_executions(moment)}
        session.output.answer(data, lambda: [head, *jobs.page(job, at), *_work(moment)])
    else:
        everything = {**as_of, "jobs": _jobs(moment), **_executions(moment)}
        session.output.answer(everything, lambda: [head, *_page(moment)])


def _last(moment: Moment) -> str:
    places = [f"{stream}:{recorded.sequence}" for stream, recorded in sorted(moment.last.items())]
    return f", the last {' and '.join(places)}" if places else ""


def _ledger(moment: Moment, job: Job) -> dict[str, Any]:
    return {
        "watermark": job.ledger.watermark,
        "last_fired": job.last_fire_time,
        "holder": moment.holder(job.name),
        "waiting": [each.execution_id for each in moment.locks[job.name].waiting] if job.name in moment.locks else [],
    }


def _executions(moment: Moment) -> dict[str, Any]:
    return {
        "executions": {**Counter(record.status for record in moment.open.values()), **moment.ended},
        "open": [
            {"execution_id": record.execution_id, "job": record.job, "status": record.status}
            for record in moment.open.values()
        ],
        "dead_letters": [id_ for _, id_ in sorted(moment.dead_letters)],
    }


def _jobs(moment: Moment) -> dict[str, int]:
    states = [Job.of(ledger) for ledger in moment.ledgers.values()]
    return Counter("deleted" if job is None else job.status for job in states)


def _page(moment: Moment) -> list[RenderableType]:
    of_jobs = ", ".join(f"{number:,} {status}" for status, number in sorted(_jobs(moment).items()))
    return [Text(f"jobs        {of_jobs or 'none'}"), *_work(moment)]


def _work(moment: Moment) -> list[RenderableType]:
    counts: dict[str, int] = _executions(moment)["executions"]
    counts_text = ", ".join(f"{number:,} {status}" for status, number in sorted(counts.items()))
    rows = [
        (record.execution_id, Text(record.job, style="bold"), record.status, record.scheduled_time, record.error or "")
        for record in moment.open.values()
    ]
    lines: list[RenderableType] = [Text(f"executions  {counts_text or 'none'}")]
    if moment.dead_letters:
        lines.append(Text(f"dead        {len(moment.dead_letters):,} unresolved letters", style="red"))
    if rows:
        headings = ("UNDER WAY", "JOB", "STATUS", "SCHEDULED", "ERROR")
        lines += [Text(), table(headings, rows, empty="", least=("ERROR", "SCHEDULED")), Text()]
    return lines
