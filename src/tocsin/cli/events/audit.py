"""`tocsin audit`: check every invariant over the log or an export."""

import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer
from rich.console import RenderableType
from rich.text import Text

from ...archive.checkpoints import SignedCheckpoint, stored_checkpoints
from ...archive.commit_reader import CommitReader
from ...archive.export import Export, ExportError, open_export
from ...archive.signing_keys import PublicKey
from ...archive.stream_reader import Selection, extents, read
from ...domain.text import printable
from ...ports import StoredLog, StoredMessage
from ...services import audit as invariants
from ...services.audit import Auditor, ProjectionReader, Report, Violation
from ...services.audit.commits import stored_log
from ...services.audit.decide_again import AGAIN, PROMISE, decided_again
from ...services.log_verification import LogVerification, Proof
from ...subjects import STREAMS
from ..input.values import instant, length
from ..installation.keys import public_keys, unreadable
from ..output.format import local
from ..runtime.errors import Exit, UsageError, no_such_job
from ..runtime.event_loop import run
from ..runtime.session import Session

ExportFile: TypeAlias = Annotated[
    Path | None, typer.Option("--file", metavar="FILE", help="An export (`-`: standard input) instead of the log.")
]


@dataclass(frozen=True, slots=True)
class Source:
    """Messages of all streams in the order of time, and the selection that they cover."""

    messages: AsyncIterator[StoredMessage]
    selection: Selection
    commits: CommitReader | None = None
    """The log itself; None: an export."""
    stored: StoredLog | None = None
    """The log with its inputs; None: an export."""
    checkpoints: Sequence[SignedCheckpoint] = ()


@asynccontextmanager
async def source(
    session: Session, file: Path | None, selection: Selection, *, is_verified: bool = False
) -> AsyncIterator[Source]:
    """Open an export or the streams, with the checkpoints if they are to be verified."""
    if file is None:
        async with session.installation() as installation:
            # Before the ends of the streams, so that the streams hold all that the checkpoints cover.
            checkpoints = await stored_checkpoints(installation.projections) if is_verified else ()
            upto = await extents(installation.stored, selection)
            log = installation.stored
            yield Source(read(log, selection, upto), selection, installation.commits.reader, log, checkpoints)
        return
    with opened(file) as export:
        subset = narrowed(export, selection)
        yield Source(_selected(file, export, subset), subset, checkpoints=export.checkpoints)


@contextmanager
def opened(file: Path) -> Iterator[Export]:
    """Open an export; errors name the file."""
    try:
        with open_export(file, sys.stdin.buffer) as export:
            yield export
    except ExportError as error:
        raise UsageError(f"{file}: {error}", code=error.code) from None
    except OSError as error:
        raise unreadable(file, error) from None


def narrowed(export: Export, selection: Selection) -> Selection:
    """Return the selection that an export can serve."""
    selection_of_export = export.manifest.selection
    if selection_of_export.job is not None and selection.job not in {None, selection_of_export.job}:
        raise UsageError(
            f"the export holds only job {selection_of_export.job!r}: use an export that holds {selection.job!r}",
            Exit.NOT_FOUND,
            code="job-not-in-export",
        )
    since = max((at for at in (selection_of_export.since, selection.since) if at is not None), default=None)
    until = min((at for at in (selection_of_export.until, selection.until) if at is not None), default=None)
    streams = tuple(stream for stream in selection_of_export.streams if stream in selection.streams)
    return Selection(streams, selection.job or selection_of_export.job, since, until, selection.execution_id)


async def _selected(file: Path, export: Export, selection: Selection) -> AsyncIterator[StoredMessage]:
    try:
        for message in export.messages:
            if message.stream in selection.streams and selection.has(message):
                yield message
    except ExportError as error:
        raise UsageError(f"{file}: {error}", code=error.code) from None


SIGNED: Final = "SIGNED"
"""The invariant of findings of the notary's checkpoints."""
_SIGNED_PROMISE: Final = "the ledger and the log hold what the notary signed, and nothing else"
FEW: Final = 20
"""Violations that the text output shows; `--output json` shows more."""


def audit(  # noqa: PLR0913, PLR0917 - the options of a command
    session: Session,
    file: ExportFile = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Check messages stored since then, or since a duration ago.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Check messages stored until then.")] = None,
    job: Annotated[str | None, typer.Option(help="Check only this job.")] = None,
    patience: Annotated[
        str, typer.Option(metavar="TIME", help="A stage that owes a decision for longer is a violation.")
    ] = "10m",
    history: Annotated[
        bool, typer.Option("--history", help="Compare the history and the KV projections with the events, too.")
    ] = False,
    decide_again: Annotated[
        bool,
        typer.Option(
            "--decide-again",
            help="Make each decision again, by this version and these settings, from what the log had before it.",
        ),
    ] = False,
    public_key: Annotated[
        list[Path] | None,
        typer.Option(
            "--public-key",
            metavar="FILE",
            help="Prove with the notary's checkpoints that the ledger and the log are unchanged; repeatable, for replaced keys.",
        ),
    ] = None,
) -> None:
    """Check the invariants: each occurrence decided once, nothing run twice, nothing lost.

    Folds the log from its beginning and reports each violation with the events that prove it: also messages that no stage
    stored, decisions that it cannot read, and a removed beginning. Work in progress is not a violation. Exits with 1 if
    there are violations.
    """
    if (history or decide_again) and (file is not None or job is not None or since is not None):
        need = "--history compares with" if history else "--decide-again needs"
        raise UsageError(f"{need} the whole log: omit --file, --job and --since", code="conflicting-options")
    if public_key and (job is not None or since is not None or until is not None):
        need = "--public-key verifies the whole log: omit --job, --since and --until"
        raise UsageError(need, code="conflicting-options")
    now = datetime.now(UTC)
    selection = Selection(job=job, since=instant(since, "--since", now=now), until=instant(until, "--until", now=now))
    report = run(
        _audit(
            session,
            file,
            selection,
            patience=length(patience, "--patience"),
            has_history=history,
            decides_again=decide_again,
            keys=public_keys(public_key or []),
        )
    )
    if job is not None and since is None and until is None and not report.facts:
        raise no_such_job(job, [])
    session.output.answer(report.as_json(), lambda: report_page(report))
    if not report.is_clean:
        raise typer.Exit(Exit.NO)


async def _audit(
    session: Session,
    file: Path | None,
    selection: Selection,
    *,
    patience: timedelta,
    has_history: bool,
    decides_again: bool,
    keys: Sequence[PublicKey],
) -> Report:
    async with AsyncExitStack() as stack:
        comparing = key = None
        if file is None:
            key = await (await stack.enter_async_context(session.installation())).report_key()
        if has_history:
            installation = await stack.enter_async_context(session.installation())
            history = await stack.enter_async_context(installation.history())
            comparing = ProjectionReader(history, installation.projections, installation.clock)
            await comparing.begin()
        log = await stack.enter_async_context(source(session, file, selection, is_verified=bool(keys)))
        if missing := [stream.value for stream in STREAMS if stream not in log.selection.streams]:
            raise UsageError(
                f"an audit needs all streams, but this export lacks {', '.join(missing)}: export without --stream",
                code="stream-missing",
            )
        verification = _verification(keys, log)
        auditor = Auditor(since=log.selection.since, until=log.selection.until, patience=patience, key=key)
        messages = log.messages
        if log.commits is not None and log.stored is not None:
            from ...bootstrap.commits import takes  # noqa: PLC0415 - it imports every stage

            messages = stored_log(auditor, log.stored, log.selection, log.commits, patience=patience, takes=takes)
        async for message in messages:
            verification.take(message)
            for recorded in auditor.read(message):
                if comparing is not None:
                    await comparing.take(recorded)
        if comparing is not None:
            auditor.compared(await comparing.finish())
        if decides_again:
            auditor.found([violation async for violation in _decided_again(session, selection)])
        report = auditor.report()
        return _with_proof(report, verification.finish(None if file else datetime.now(UTC))) if keys else report


async def _decided_again(session: Session, selection: Selection) -> AsyncIterator[Violation]:
    from ...bootstrap.stage_runner import deciding_stages  # noqa: PLC0415 - it imports every stage

    async with session.installation() as installation:
        key = await installation.report_key()
        stages = partial(deciding_stages, installation, key)
        async for violation in decided_again(
            installation.commits.reader, installation.stored, stages, key, until=selection.until
        ):
            yield violation


def _verification(keys: Sequence[PublicKey], log: Source) -> LogVerification:
    """Return the verification of the checkpoints; without keys, it judges nothing."""
    if not keys:
        return LogVerification((), (), streams=())
    if log.selection != Selection():
        raise UsageError(
            "this export holds a part of the log only: export without --job, --since, --until and --stream",
            code="partial-export",
        )
    return LogVerification(keys, log.checkpoints)


def _with_proof(report: Report, proof: Proof) -> Report:
    findings = (Violation(SIGNED, finding.entity, finding.reason) for finding in proof.findings)
    return replace(
        report,
        violations=(*findings, *report.violations),
        total=report.total + proof.total,
        remarks=(*report.remarks, *proof.remarks),
    )


def report_page(report: Report) -> list[RenderableType]:
    page: list[RenderableType] = [line for violation in report.violations[:FEW] for line in _violation(violation)]
    if report.total > FEW:
        page.append(Text(f"and {report.total - FEW:,} more: --output json shows them", style="dim"))
    page += [Text(remark, style="yellow") for remark in report.remarks]
    page += [Text(f"voided: {printable(message)}", style="dim") for message in report.voided]
    if report.debts:
        oldest = min(report.debts, key=lambda debt: debt.since)
        place = f"the oldest since {local(oldest.since)}: {oldest.entity}: {oldest.reason}"
        page.append(Text(f"under way: {len(report.debts):,}, {place}", style="dim"))
    return [*page, Text(report.summary, style="bold green" if report.is_clean else "bold red")]


def _violation(violation: Violation) -> list[RenderableType]:
    head = Text.assemble((f"{violation.invariant}  ", "bold red"), (violation.entity, "bold"), f": {violation.reason}")
    promise = {**invariants.INVARIANTS, **invariants.PUBLIC, SIGNED: _SIGNED_PROMISE, AGAIN: PROMISE}[
        violation.invariant
    ]
    return [head, Text(f"    promised: {promise}", style="dim"), *(Text(f"    {fact}") for fact in violation.facts)]
