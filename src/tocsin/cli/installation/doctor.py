"""`tocsin doctor`: what is wrong, what it means, what to do."""

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
        typer.Option(
            metavar="URL", help="A server's monitoring endpoint, e.g. http://nats-1:8222; as often as needed."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Leave out what is well.")] = False,
) -> None:
    """Check the installation, and say of each thing found what it means and what to do. Ends with 1 if anything is bad."""
    session = session_of(context)
    found = run(_examine(session, monitor or []))
    told = [finding for finding in found if not quiet or finding.level != "ok"]
    session.output.answer([asdict(finding) for finding in told], lambda: _shown(told))
    if any(finding.level == "bad" for finding in found):
        raise typer.Exit(Exit.NO)


async def _examine(session: Session, monitors: list[str]) -> "list[Finding]":
    async with session.backend.connect(session.settings()) as installation:
        return await session.backend.examine(installation, monitors)


def _shown(found: "list[Finding]") -> "Iterator[Text]":
    for finding in found:
        mark, style = _MARKS[finding.level]
        yield Text.assemble((mark, style), "  ", finding.what, (f"  [{finding.code}]", "dim"))
        if finding.means:
            yield Text(f"      {finding.means}")
        if finding.do:
            yield Text.assemble(("      → ", style), finding.do)
    counts = {level: sum(finding.level == level for finding in found) for level in _MARKS}
    yield Text(", ".join(f"{number} {level}" for level, number in counts.items()), style="bold")
