"""`tocsin repair`: void messages that no stage stored, and events that no version reads."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from ...domain.text import counted
from ...engine.foreign_reports import not_voided
from ...services import repair as repairs
from ...services.repair import FoundMessage
from ..input.values import Yes, check, confirm
from ..output.format import local
from ..output.tables import table
from ..runtime.session import Session, actor

if TYPE_CHECKING:
    from ...bootstrap import Installation


def repair(
    session: Session,
    reason: Annotated[str | None, typer.Option(help="Reason, recorded in each event.")] = None,
    unreadable: Annotated[
        bool,
        typer.Option(
            "--unreadable", help="Void events that this version cannot read, and cancel their open executions."
        ),
    ] = False,
    lost_tail: Annotated[
        bool,
        typer.Option(
            "--lost-tail",
            help="End the log where its newest commits were lost, so that no number is given again.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the messages.")] = False,
    yes: Yes = False,
) -> None:
    """Void the messages of the log of commits that no stage stored.

    Stores an event for each message that a process met. Nothing is removed, and no job
    changes: readers skip such a message anyway. Afterwards `status` and `doctor` report these messages no more.
    It needs NATS and its user `operator`: an HTTP API (`--server`) has no such operation.

    With `--unreadable`, void events instead that a stage stored and this version cannot read, such as events of a newer version
    that was taken back. First upgrade, if there is a version that reads them: they wait for it, and nothing is lost. An open execution with such an
    event is cancelled, and never runs again. Then readers skip the event, and waiting inputs go on. Events are kept, with exit code 1, of an
    execution whose beginning cannot be read, and of locks, unique keys, agents and owners.

    With `--lost-tail`, end a log whose newest commits a server lost, such as after a power failure. Stop all processes first, and
    run it as the NATS user `restore`. Numbers of events, and with them fencing tokens, go on above all that were given, and the history takes back what is beyond.

    Example: `tocsin repair --reason "replies of a wrong script, see INC-7"`
    """
    if lost_tail:
        _repair_lost_tail(session, dry_run=dry_run, yes=yes)
        return

    async def find(installation: "Installation") -> tuple[list[FoundMessage], list[tuple[FoundMessage, str]]]:
        reported = await not_voided(installation.log, installation.projections)
        messages = await repairs.find(installation.stored, unreadable=unreadable, reported=reported)
        reasons = await repairs.reasons_to_keep(installation.log, messages) if unreadable else {}
        return (
            [message for message in messages if message.key not in reasons],
            [(message, reasons[message.key]) for message in messages if message.key in reasons],
        )

    async def void(installation: "Installation") -> tuple[int, list[str]]:
        log, projections = installation.log, installation.projections
        if unreadable:
            return await repairs.void_unreadable(log, projections, found, by=actor(), reason=reason)
        return await repairs.void(log, projections, found, by=actor(), reason=reason), []

    if not dry_run:
        check("void messages?", yes=yes)
    found, kept = session.on_installation(find)
    if found and not dry_run:
        end = " and cancel their open executions" if unreadable else ""
        confirm(f"void {counted(len(found), 'message')}{end}?", yes=yes, otherwise="nothing was voided")
    number, cancelled = session.on_installation(void) if found and not dry_run else (0, [])
    session.output.answer(
        {
            "messages": [_plain(message) for message in found],
            "voided": number,
            "cancelled": cancelled,
            "kept": [_plain(message) | {"reason": why} for message, why in kept],
            "dry_run": dry_run,
        },
        lambda: [
            table(
                ("STREAM", "SEQUENCE", "STORED", "SUBJECT", "REASON"),
                [(m.stream, m.sequence, local(m.stored_at), m.subject, m.found) for m in found],
                empty="no unreadable events" if unreadable else "no foreign messages",
                least=("REASON", "STORED"),
            ),
            *(Text(f"cancelled execution {execution_id}") for execution_id in cancelled),
            *(Text(f"kept {m.stream} {m.sequence} {m.subject}: {why}") for m, why in kept),
            *([Text(f"{'would void' if dry_run else 'voided'} {len(found) if dry_run else number}")] if found else []),
        ],
    )
    if kept:
        raise typer.Exit(1)


def _repair_lost_tail(session: Session, *, dry_run: bool, yes: bool) -> None:
    from ...bootstrap.backups import LostTail, end_lost_tail, find_lost_tail  # noqa: PLC0415 - only this option needs it

    number, known = session.on_installation(find_lost_tail)
    upto = 0
    if known and not dry_run:
        confirm(f"end the log after event {number:,}?", yes=yes, otherwise="nothing was repaired")
        upto = session.on_installation(lambda installation: end_lost_tail(installation, LostTail(number, known)))
    texts = [
        f"the log ends with event {number:,}" + (f", and event {known:,} was stored" if known else ": nothing is lost")
    ]
    if upto:
        texts.append(f"events go on after number {upto:,}")
    session.output.answer(
        {"number": number, "known": known or None, "upto": upto or None, "dry_run": dry_run},
        lambda: [Text(text, style="bold") for text in texts],
    )


def _plain(message: FoundMessage) -> dict[str, Any]:
    return asdict(message) | {"stream": str(message.stream)}
