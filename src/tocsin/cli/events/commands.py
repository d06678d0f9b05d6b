"""`tocsin events tail`, `tocsin events audit-trail` and `tocsin events export`."""

from collections import Counter
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import typer
from rich.text import Text

from ... import __version__, subjects
from ...archive.checkpoints import stored_checkpoints
from ...archive.export import Manifest, write
from ...archive.stream_reader import Selection, extents, read
from ...domain.events import Terminal, Trigger
from ...domain.silence import extent
from ...domain.text import counted
from ...services.operations.audit_records import AuditRecord, audit_records
from ...subjects import STREAMS, Stream
from ..input.values import Out, instant
from ..output import event_lines
from ..output.format import destination
from ..output.tables import print_table
from ..runtime.event_loop import serve
from ..runtime.session import Session

if TYPE_CHECKING:
    from ...bootstrap import Installation


def audit_trail(
    session: Session,
    job: Annotated[str | None, typer.Option(help="Show only this job.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Show changes since a date, a time, or a duration ago.")
    ] = None,
    runs: Annotated[bool, typer.Option("--runs", help="Show the ends of executions too.")] = False,
) -> None:
    """List the changes that users made, with user, time, source and reason.

    Changes are: registered, changed, deleted, paused, resumed and triggered jobs, cancelled executions, replayed and resolved dead
    letters, decisions about agents and queues, shard maps, policies, namespaces, silences, and voided messages. The types are `JOB_CREATED`, `JOB_MODIFIED`, `JOB_DELETED`, `JOB_CANCELLED`, `POLICY_DEFINED`, and with `--runs` also
    `JOB_EXECUTED` and `JOB_FAILED`, of the executions that the archive has not taken yet.

    Example: `tocsin events audit-trail --job nightly --since 7d --runs`
    """
    begin = None if since is None else instant(since, "--since", now=datetime.now(UTC))
    records = session.on_installation(lambda installation: audit_records(installation.log, job, since=begin, runs=runs))
    print_table(
        session.output,
        [{**event_lines.as_json(record.recorded), "audit": record.as_json()} for record in records],
        ("WHEN", "TYPE", "WHO", "FROM", "WHAT", "OF", "STATE", "AGENT", "REASON"),
        map(_row, records),
        empty="no operations are recorded",
        least=("FROM", "AGENT", "STATE", "REASON"),
    )


_INITIATORS: Final = {"cron": "schedule", **{kind: kind for kind in ("event", "replay", "recovery", "backfill")}}
"""What starts a run without a caller, by its trigger."""


def _row(record: AuditRecord) -> tuple[object, ...]:
    recorded = record.recorded
    fact = recorded.message
    by = record.by
    cause = _INITIATORS.get(fact.trigger, "unknown") if isinstance(fact, Terminal) else "unknown"
    who = by.identity if by else cause
    return (
        recorded.time,
        record.type or "",
        Text(who, style="" if by else "dim"),
        by.source if by else "",
        _verb(record),
        Text(_about(record), style="bold"),
        record.state or "",
        record.agent or "",
        getattr(fact, "reason", None) or "",
    )


def _verb(record: AuditRecord) -> str:
    if record.silence is not None:
        return f"silence {record.silence[1]}"
    fact = record.recorded.message
    return f"{fact.trigger} trigger" if isinstance(fact, Trigger) else event_lines.describe(fact).verb


def _about(record: AuditRecord) -> str:
    if record.silence is not None:
        return extent(record.silence[0])
    if record.job is not None:
        return record.job
    kind, name, *_ = record.recorded.subject.split(".")
    match kind:
        case "agent":
            return f"agent {name}"
        case "queue":
            return f"queue {subjects.name(name)}"
        case "repair":
            return f"stream {name}"
        case _:
            return kind


def tail(
    session: Session,
    job: Annotated[str | None, typer.Option(help="Show only this job.")] = None,
    from_start: Annotated[bool, typer.Option("--from-start", help="Begin with the first stored event.")] = False,
) -> None:
    """Print each event when it is stored, until interrupted.

    The events of jobs, executions, locks and dead letters have one line each.
    """
    serve(_tail(session, job, from_start=from_start))


async def _tail(session: Session, job: str | None, *, from_start: bool) -> None:
    async with session.operator() as operator:
        async for facts in operator.follow(job, from_start=from_start):
            for recorded in facts:
                shown = event_lines.line(recorded, width=session.output.width)
                session.output.line(event_lines.as_json(recorded), shown)


StreamName: TypeAlias = Literal["LEDGER", "INPUTS", "REQUESTS", "REPORTS", "LOG"]


def export(
    session: Session,
    out: Out = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Export messages stored since then, and all definitions.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Export messages stored until then.")] = None,
    job: Annotated[str | None, typer.Option(help="Export only this job.")] = None,
    stream: Annotated[StreamName | None, typer.Option(help="Export only this stream; by default all of them.")] = None,
) -> None:
    """Write every stored message as a JSON object, one per line.

    `tocsin audit --file` and `tocsin events replay --file` read the result. The first line describes the content; the last
    line holds the number of messages and their digest, so that a truncated file is detected. A whole export holds the
    notary's checkpoints too. A file whose name ends in .gz is compressed.
    """
    now = datetime.now(UTC)
    selection = Selection(
        streams=STREAMS if stream is None else (Stream(stream),),
        job=job,
        since=instant(since, "--since", now=now),
        until=instant(until, "--until", now=now),
    )
    counts = session.on_installation(partial(_export, out, selection))
    if out is not None:
        of_streams = {name.value: counts[name] for name in selection.streams}
        total = f"exported {counted(counts.total(), 'message')} to {out}"
        data = {"file": str(out), "messages": counts.total(), "streams": of_streams}
        session.output.answer(data, lambda: [Text(total, style="bold")])


async def _export(out: Path | None, selection: Selection, installation: "Installation") -> Counter[Stream]:
    # Before the ends of the streams, so that the export holds all that its checkpoints cover.
    checkpoints = await stored_checkpoints(installation.projections) if selection == Selection() else ()
    upto = await extents(installation.stored, selection)
    manifest = Manifest(await installation.identity(), installation.settings.root, __version__, selection, upto)
    with destination(out, is_compressed=out is not None and out.suffix == ".gz") as file:
        return await write(file, manifest, read(installation.stored, selection, upto), checkpoints)
