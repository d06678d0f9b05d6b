"""`tocsin doctor`: problems of the installation, their meaning and their remedy."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from ..runtime.errors import Exit
from ..runtime.event_loop import run
from ..runtime.session import Session, session_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...services.health import Finding

_MARKS = {"ok": ("ok  ", "green"), "warn": ("warn", "yellow"), "bad": ("bad ", "bold red")}


def doctor(
    context: typer.Context,
    monitor: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="A server's monitoring endpoint, such as http://nats-1:8222; repeatable."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print warnings and problems only.")] = False,
) -> None:
    """Check the installation; explain each finding and its remedy.

    Exits with 1 if a finding is bad.

    Example: `tocsin doctor --monitor http://nats-1:8222 --monitor http://nats-2:8222`
    """
    session = session_of(context)
    findings = run(_examine(session, monitor or []))
    printed = [finding for finding in findings if not quiet or finding.level != "ok"]
    session.output.answer([asdict(finding) for finding in printed], lambda: _finding_lines(printed))
    if any(finding.level == "bad" for finding in findings):
        raise typer.Exit(Exit.NO)


async def _examine(session: Session, monitors: list[str]) -> "list[Finding]":
    async with session.backend.connect(session.settings()) as installation:
        return await session.backend.examine(installation, monitors)


def _finding_lines(findings: "list[Finding]") -> "Iterator[Text]":
    for finding in findings:
        mark, style = _MARKS[finding.level]
        yield Text.assemble((mark, style), "  ", finding.what, (f"  [{finding.code}]", "dim"))
        if finding.means:
            yield Text(f"      {finding.means}")
        if finding.do:
            yield Text.assemble(("      → ", style), finding.do)
    counts = {level: sum(finding.level == level for finding in findings) for level in _MARKS}
    yield Text(", ".join(f"{number} {level}" for level, number in counts.items()), style="bold")
