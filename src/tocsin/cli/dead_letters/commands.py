"""`tocsin dead-letters show`, `replay`, `replay-all` and `resolve` (hip-62, Dead Letter Handling)."""

from base64 import b64decode
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Annotated, TypeAlias

import typer
from rich.console import RenderableType
from rich.text import Text

from ...adapters.files import dump_yaml
from ...domain.dead_letter import DeadLetter
from ...domain.events import DeadLettered, PoisonMessage
from ...domain.execution import Status
from ...domain.text import counted
from ...ports.queries import DeadLetterQuery, every
from ...services.operations.dead_letter_lookup import Letter
from ...services.operations.dead_letters import Replay, Resolution
from ...services.operator import Operator
from ..executions.page import attempts_table
from ..input.values import check, confirm, instant, json_of
from ..input.values import rate as rate_of
from ..output.format import local, state
from ..output.tables import table
from ..runtime.batch import on_each
from ..runtime.event_loop import run
from ..runtime.session import Session, session_of

OPEN = "open"
"""Status of a replay that no execution is known for yet."""


def as_json(letter: Letter) -> dict[str, object]:
    """Return the JSON document of a dead letter."""
    fact, resolved = letter.state.fact, letter.state.resolved
    return {
        "id": letter.id,
        "job": letter.job,
        "resolved": resolved is not None,
        "resolution": None if resolved is None else {"time": resolved.time, **resolved.message.model_dump(mode="json")},
        "letter": fact.model_dump(mode="json", exclude_none=True),
        "text": _text(fact) if isinstance(fact, PoisonMessage) else None,
        "replays": [
            {
                "number": replay.fact.number,
                "time": replay.at,
                "execution_id": replay.execution_id,
                "status": _status_name(status),
                "input": replay.fact.input,
                "by": replay.fact.by,
                "reason": replay.fact.reason,
            }
            for replay, status in zip(letter.state.replays, letter.replays, strict=True)
        ],
    }


def page(letter: Letter) -> list[RenderableType]:
    """Return the terminal page of a dead letter."""
    fact = letter.state.fact
    status = "resolved" if letter.state.resolved else "unresolved"
    heading = Text.assemble((letter.job, "bold"), "  ", state(status))
    lines: list[RenderableType] = [heading, Text(letter.id, style="dim")]
    lines += _execution_lines(fact) if isinstance(fact, DeadLettered) else _message_lines(fact)
    return [*lines, *_replays(letter), *_resolution(letter.state)]


def _execution_lines(fact: DeadLettered) -> list[RenderableType]:
    lines: list[RenderableType] = [
        Text(f"{fact.trigger}, scheduled for {local(fact.scheduled_time)}", style="dim"),
        Text(f"execution {fact.execution_id}" + (f", a replay of {fact.replay_of}" if fact.replay_of else "")),
    ]
    if fact.input:
        lines += [Text(), Text(dump_yaml({"input": fact.input}).rstrip())]
    lines += [Text(), attempts_table(fact.attempts)]
    if error := fact.last_error:
        trace = (error.traceback or "").rstrip()
        lines += [Text(), Text(trace or f"{error.type}: {error.message}", style="red")]
    return lines


def _message_lines(fact: PoisonMessage) -> list[RenderableType]:
    return [
        Text(f"a message that {fact.durable} could not process: {fact.subject}, stored as {fact.sequence}"),
        Text(f"{fact.reason} ({fact.code})" if fact.code else fact.reason, style="red"),
        Text(),
        Text(_text(fact) or "(empty)"),
    ]


def _replays(letter: Letter) -> list[RenderableType]:
    rows = [
        (
            replay.fact.number,
            state(_status_name(status)),
            replay.at,
            replay.fact.by.identity if replay.fact.by else "",
            replay.execution_id,
        )
        for replay, status in zip_longest(letter.state.replays, letter.replays)
    ]
    headings = ("REPLAY", "STATUS", "REQUESTED", "BY", "EXECUTION")
    return [Text(), table(headings, rows, empty="", least=("BY", "REQUESTED"))] if rows else []


def _resolution(letter: DeadLetter) -> list[RenderableType]:
    if letter.resolved is None:
        return []
    fact = letter.resolved.message
    actor = f" by {fact.by.identity}" if fact.by else ""
    execution = f" by execution {fact.execution_id}" if fact.execution_id else ""
    reason = f": {fact.reason}" if fact.reason else ""
    return [Text(), Text(f"resolved {local(letter.resolved.time)}{actor}{execution}{reason}", style="green")]


def _status_name(status: Status | None) -> str:
    match status:
        case None | Status.UNKNOWN:
            return OPEN
        case Status.PLANNED:
            return "pending"
        case Status.ADMITTED:
            return "running"
        case _:
            return status.value


def _text(fact: PoisonMessage) -> str:
    return b64decode(fact.body).decode(errors="replace")


Id: TypeAlias = Annotated[
    str, typer.Argument(metavar="DEAD-LETTER", help="The dead letter's id or its first characters.")
]
Reason: TypeAlias = Annotated[str | None, typer.Option(help="Reason, recorded in the event.")]


def show(context: typer.Context, dead_letter: Id) -> None:
    """Show a dead letter: attempts, last traceback, input and replays.

    Example: `tocsin dead-letters show 0193a5b0`
    """
    session = session_of(context)

    async def read() -> Letter:
        async with session.operator() as operator:
            return await operator.dead_letter(dead_letter)

    letter = run(read())
    session.output.answer(as_json(letter), lambda: page(letter))


# --- replay ----------------------------------------------------------------------------------------------------------


def replay(
    context: typer.Context,
    dead_letter: Id,
    input: Annotated[  # noqa: A002 - the field is called so
        str | None, typer.Option(metavar="JSON|@FILE", help="An object whose keys override the original input.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Replay even if a replay is open or the dead letter is resolved.")
    ] = False,
    reason: Reason = None,
) -> None:
    """Run a dead letter again, with the job's current definition and the same scheduled time.

    A replay that completes resolves the dead letter. A replay waits for overlapping executions under every overlap policy.

    Example: `tocsin dead-letters replay 0193a5b0 --input '{"day": "friday"}'`
    """
    session = session_of(context)
    overrides = json_of("--input", input, dict)

    async def request() -> Replay:
        async with session.operator() as operator:
            return await operator.replay(dead_letter, input=overrides, reason=reason, again=again)

    result = run(request())
    session.output.answer(asdict(result), lambda: [_replay_line(result)])


def replay_all(  # noqa: PLR0913, PLR0917 - each is an option of the command
    context: typer.Context,
    job: Annotated[str | None, typer.Option(help="Filter by job.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Last attempted at this time or later.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Last attempted before this time.")] = None,
    error: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Filter by a text that the last error contains.")
    ] = None,
    rate: Annotated[str, typer.Option(help="Maximum rate of replays, such as 10/s or 100/m.")] = "10/s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the dead letters that match.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    reason: Reason = None,
) -> None:
    """Replay every unresolved dead letter that matches, the oldest first.

    Skips dead letters that have an open replay.

    Example: `tocsin dead-letters replay-all --job nightly --since 24h --rate 100/m`
    """
    session, now = session_of(context), datetime.now(UTC)
    query = DeadLetterQuery(
        job=job,
        unresolved=True,
        since=instant(since, "--since", now=now),
        until=instant(until, "--until", now=now),
        error=error,
        sort="oldest",
    )
    requests_per_second = rate_of(rate, "--rate")
    check("replay the dead letters?", yes=yes or dry_run)
    summary = run(_replay_all(session, query, requests_per_second, reason, dry_run=dry_run, yes=yes))
    if session.output.is_json:
        session.output.answer(summary, list)


async def _replay_all(
    session: Session, query: DeadLetterQuery, rate: float, reason: str | None, *, dry_run: bool, yes: bool
) -> dict[str, object]:
    async with session.operator() as operator:
        rows = [row async for row in every(operator.dead_letters, query)]
        if dry_run or not rows:
            _print_lines(session, *(Text(f"{row.id}  {row.job_name}  {row.last_error or ''}") for row in rows))
            _print_lines(session, Text(f"{len(rows)} to replay", style="bold"))
            return {"dry_run": dry_run, "wanted": [row.id for row in rows], "replayed": [], "passed_over": []}
        confirm(f"replay {counted(len(rows), 'dead letter')}?", yes=yes, otherwise="nothing was replayed")
        replayed: list[Replay] = []
        skipped: list[str] = []
        async for result in operator.replay_all(query, rate=rate, reason=reason):
            if isinstance(result, Replay):
                replayed.append(result)
                _print_lines(session, _replay_line(result))
            else:
                skipped.append(str(result))
                _print_lines(session, Text.assemble(("skipped: ", "yellow"), str(result)))
        _print_lines(session, Text(f"{len(replayed)} replayed, {len(skipped)} skipped", style="bold"))
        return {"dry_run": False, "replayed": [asdict(result) for result in replayed], "passed_over": skipped}


def _print_lines(session: Session, *lines: Text) -> None:
    if not session.output.is_json:
        session.output.answer(None, lambda: lines)


def _replay_line(result: Replay) -> Text:
    target = f"execution {result.execution_id}" if result.execution_id else "message published again"
    return Text.assemble(("replayed ", "cyan"), (result.job, "bold"), f" {result.id}: {target}")


# --- resolve ---------------------------------------------------------------------------------------------------------


def resolve(
    context: typer.Context,
    dead_letter: Annotated[
        list[str],
        typer.Argument(metavar="DEAD-LETTER", help="The ids of the dead letters or their first characters."),
    ],
    reason: Reason = None,
) -> None:
    """Mark dead letters as resolved without running them again.

    Example: `tocsin dead-letters resolve 0193a5b0 --reason "fixed by hand"`
    """
    session = session_of(context)

    async def resolve_letter(operator: Operator, given: str) -> Resolution:
        return await operator.resolve(given, reason=reason)

    on_each(session, dead_letter, resolve_letter, _resolution_line)


def _resolution_line(resolution: Resolution) -> Text:
    result = ("resolved ", "green") if resolution.changed else "was resolved already: "
    return Text.assemble(result, resolution.id, (f" of {resolution.job}", "dim"))
