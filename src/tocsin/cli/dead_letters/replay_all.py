"""`tocsin dead-letters replay-all`: many at once, in a measured way."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.text import Text

from ...ports.queries import DeadLetterQuery, every
from ...services.operations.dead_letters import Replay
from ..input.values import check, confirm, instant
from ..input.values import rate as rate_of
from ..runtime.event_loop import run
from ..runtime.session import Session, session_of
from .commands import line


def replay_all(  # noqa: PLR0913, PLR0917 - each is an option of the command
    context: typer.Context,
    job: Annotated[str | None, typer.Option(help="Only of this job.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Last attempted then or later.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Last attempted before that.")] = None,
    error: Annotated[str | None, typer.Option(metavar="TEXT", help="Whose last error contains this.")] = None,
    rate: Annotated[str, typer.Option(help="How many at most: 10/s, 100/m.")] = "10/s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    reason: Annotated[str | None, typer.Option(help="Why; it is recorded.")] = None,
) -> None:
    """Replay every unresolved dead letter that matches, the oldest first. What is being replayed is passed over."""
    session, now = session_of(context), datetime.now(UTC)
    query = DeadLetterQuery(
        job=job,
        unresolved=True,
        since=instant(since, "--since", now=now),
        until=instant(until, "--until", now=now),
        error=error,
        sort="oldest",
    )
    check("replay what failed?", yes=yes or dry_run)
    done = run(_replay_all(session, query, rate_of(rate, "--rate"), reason, dry_run=dry_run, yes=yes))
    if session.output.is_json:
        session.output.answer(done, list)


async def _replay_all(
    session: Session, query: DeadLetterQuery, rate: float, reason: str | None, *, dry_run: bool, yes: bool
) -> dict[str, object]:
    async with session.operator() as operator:
        wanted = [row async for row in every(operator.dead_letters, query)]
        if dry_run or not wanted:
            _say(session, *(Text(f"{row.id}  {row.job_name}  {row.last_error or ''}") for row in wanted))
            _say(session, Text(f"{len(wanted)} to replay", style="bold"))
            return {"dry_run": dry_run, "wanted": [row.id for row in wanted], "replayed": [], "passed_over": []}
        confirm(f"replay {len(wanted)} dead letters?", yes=yes, otherwise="nothing was replayed")
        replayed: list[Replay] = []
        passed_over: list[str] = []
        async for one in operator.replay_all(query, rate=rate, reason=reason):
            if isinstance(one, Replay):
                replayed.append(one)
                _say(session, line(one))
            else:
                passed_over.append(str(one))
                _say(session, Text.assemble(("passed over: ", "yellow"), str(one)))
        _say(session, Text(f"{len(replayed)} replayed, {len(passed_over)} passed over", style="bold"))
        return {"dry_run": False, "replayed": [asdict(one) for one in replayed], "passed_over": passed_over}


def _say(session: Session, *lines: Text) -> None:
    if not session.output.is_json:
        session.output.answer(None, lambda: lines)
