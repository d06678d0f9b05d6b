"""`tocsin dead-letters list`, `show`, `replay`, `replay-all` and `resolve` (hip-62, Dead Letter Handling)."""

from base64 import b64decode
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Annotated, Final, TypeAlias

import typer
from rich.console import RenderableType
from rich.text import Text

from ..adapters.files import dump_yaml
from ..domain.dead_letter import DeadLetter
from ..domain.events import DeadLettered, PoisonMessage
from ..domain.execution import Status
from ..domain.text import counted
from ..ports import DeadLetterRow
from ..ports.queries import DeadLetterQuery, DeadLetterSort, every
from ..services.operations.dead_letters import Letter, Replay, Resolution
from ..services.operator import Operator
from .executions.commands import on_each
from .executions.page import attempts_table
from .input.values import Reason, Yes, check, confirm, instant, json_of
from .input.values import rate as rate_of
from .output.format import local, state
from .output.tables import table, this_year, unique_beginnings
from .runtime.history_pages import All, Cursor, Error, Job, Limit, check_job, page_size, print_page, read_page
from .runtime.session import Session

_QUESTION: Final = "replay the dead letters?"

Id: TypeAlias = Annotated[
    str, typer.Argument(metavar="DEAD-LETTER", help="The dead letter's id or its first characters.")
]
OfJob: TypeAlias = Annotated[
    str | None, typer.Option("--job", help="The dead letter's job, if several jobs have one with this id.")
]
Since: TypeAlias = Annotated[str | None, typer.Option(metavar="TIME", help="Last attempted at this time or later.")]
Until: TypeAlias = Annotated[str | None, typer.Option(metavar="TIME", help="Last attempted before this time.")]


def list_dead_letters(  # noqa: PLR0913, PLR0917 - each is an option of the command
    session: Session,
    job: Job = None,
    unresolved: Annotated[bool, typer.Option("--unresolved", help="Omit resolved dead letters.")] = False,
    since: Since = None,
    until: Until = None,
    error: Error = None,
    sort: Annotated[DeadLetterSort, typer.Option(help="By the time of the last attempt.")] = "newest",
    cursor: Cursor = None,
    limit: Limit = None,
    is_all: All = False,
) -> None:
    """List dead letters from the history, the newest first.

    Example: `tocsin dead-letters list --unresolved --since 7d`
    """
    now = datetime.now(UTC)
    query = DeadLetterQuery(
        job=job,
        unresolved=unresolved,
        since=instant(since, "--since", now=now),
        until=instant(until, "--until", now=now),
        error=error,
        sort=sort,
        cursor=cursor,
        limit=page_size(limit, is_all=is_all),
    )
    print_page(
        session,
        read_page(session, lambda operator: operator.dead_letters, query, is_all=is_all),
        ("ID", "JOB", "STATE", "ATTEMPTS", "LAST ATTEMPT", "LAST ERROR"),
        _row,
        empty="no dead letters",
        least=("ATTEMPTS", "LAST ATTEMPT", "LAST ERROR"),
        brief={"ID": unique_beginnings, "LAST ATTEMPT": this_year},
    )


def _row(row: DeadLetterRow) -> tuple[object, ...]:
    return (
        row.id,
        Text(row.job_name, style="bold"),
        state("resolved" if row.resolved else "unresolved"),
        row.attempts,
        row.last_attempt,
        (row.last_error or "").partition("\n")[0],
    )


def show(session: Session, dead_letter: Id, job: OfJob = None) -> None:
    """Show a dead letter: attempts, last traceback, input and replays.

    Example: `tocsin dead-letters show 0193a5b0`
    """
    letter = session.ask(lambda operator: operator.dead_letter(dead_letter, job=job))
    session.output.answer(as_json(letter), lambda: page(letter))


def replay(
    session: Session,
    dead_letter: Id,
    job: OfJob = None,
    input: Annotated[  # noqa: A002 - the field is called so
        str | None, typer.Option(metavar="JSON|@FILE", help="An object whose keys override the original input.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Replay even if a replay is open or the dead letter is resolved.")
    ] = False,
    failed_only: Annotated[
        bool,
        typer.Option("--failed-only", help="Run only the steps that did not complete, with the results of the others."),
    ] = False,
    reason: Reason = None,
) -> None:
    """Run a dead letter again, with the job's current definition and the same scheduled time.

    A replay that completes resolves the dead letter. A replay waits for overlapping executions under every overlap policy.

    Example: `tocsin dead-letters replay 0193a5b0 --input '{"day": "friday"}'`
    """
    overrides = json_of("--input", input, dict)
    result = session.ask(
        lambda operator: operator.replay(
            dead_letter, job=job, input=overrides, reason=reason, again=again, failed_only=failed_only
        )
    )
    session.output.answer(asdict(result), lambda: [_replay_line(result)])


def replay_all(  # noqa: PLR0913, PLR0917 - each is an option of the command
    session: Session,
    job: Job = None,
    since: Since = None,
    until: Until = None,
    error: Error = None,
    rate: Annotated[str, typer.Option(help="Maximum rate of replays, such as 10/s or 100/m.")] = "10/s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the dead letters that match.")] = False,
    yes: Yes = False,
    reason: Reason = None,
) -> None:
    """Replay every unresolved dead letter that matches, the oldest first.

    Skips dead letters that have an open replay, and leaves out those that appear meanwhile.

    Example: `tocsin dead-letters replay-all --job nightly --since 24h --rate 100/m`
    """
    now = datetime.now(UTC)
    query = DeadLetterQuery(
        job=job,
        unresolved=True,
        since=instant(since, "--since", now=now),
        until=instant(until, "--until", now=now),
        error=error,
        sort="oldest",
    )
    output, requests_per_second = session.output, rate_of(rate, "--rate")
    if job is None:  # else a job that does not exist is reported first
        check(_QUESTION, yes=yes or dry_run)

    async def work(operator: Operator) -> dict[str, object]:
        if job is not None:
            await check_job(operator, job)
            check(_QUESTION, yes=yes or dry_run)
        rows = [row async for row in every(operator.dead_letters, query)]
        if dry_run or not rows:
            output.print(Text(f"{row.id}  {row.job_name}  {row.last_error or ''}") for row in rows)
            output.print([Text(f"{len(rows)} to replay", style="bold")])
            return {"dry_run": dry_run, "matching": [row.id for row in rows], "replayed": [], "skipped": []}
        confirm(f"replay {counted(len(rows), 'dead letter')}?", yes=yes, otherwise="nothing was replayed")
        replayed, skipped = list[Replay](), list[str]()
        async for result in operator.replay_all(rows, rate=requests_per_second, reason=reason):
            if isinstance(result, Replay):
                replayed.append(result)
                output.print([_replay_line(result)])
            else:
                skipped.append(str(result))
                output.print([Text.assemble(("skipped: ", "yellow"), str(result))])
        output.print([Text(f"{len(replayed)} replayed, {len(skipped)} skipped", style="bold")])
        return {"dry_run": False, "replayed": [asdict(result) for result in replayed], "skipped": skipped}

    session.output.answer(session.ask(work), list)


def _replay_line(result: Replay) -> Text:
    target = f"execution {result.execution_id}" if result.execution_id else "message published again"
    return Text.assemble(("replayed ", "cyan"), (result.job, "bold"), f" {result.id}: {target}")


def resolve(
    session: Session,
    dead_letter: Annotated[
        list[str],
        typer.Argument(metavar="DEAD-LETTER", help="The ids of the dead letters or their first characters."),
    ],
    job: OfJob = None,
    reason: Reason = None,
) -> None:
    """Mark dead letters as resolved without running them again.

    Example: `tocsin dead-letters resolve 0193a5b0 --reason "fixed by hand"`
    """
    on_each(session, dead_letter, lambda operator, given: operator.resolve(given, job=job, reason=reason), _resolution)


def _resolution(resolution: Resolution) -> Text:
    result = ("resolved ", "green") if resolution.changed else "was resolved already: "
    return Text.assemble(result, resolution.id, (f" of {resolution.job}", "dim"))


def as_json(letter: Letter) -> dict[str, object]:
    fact, document = letter.state.fact, letter.document(_status_name)
    replays = document.pop("replays")
    return {**document, "text": _text(fact) if isinstance(fact, PoisonMessage) else None, "replays": replays}


def page(letter: Letter) -> list[RenderableType]:
    fact = letter.state.fact
    status = "resolved" if letter.state.resolved else "unresolved"
    heading = Text.assemble((letter.job, "bold"), "  ", state(status))
    lines: list[RenderableType] = [heading, Text(letter.id, style="dim")]
    lines += _execution_lines(fact) if isinstance(fact, DeadLettered) else _message_lines(fact)
    return [*lines, *_replays(letter), *_resolved(letter.state)]


def _execution_lines(fact: DeadLettered) -> list[RenderableType]:
    lines: list[RenderableType] = [
        Text(f"{fact.trigger}, scheduled for {local(fact.scheduled_time)}", style="dim"),
        Text(f"execution {fact.execution_id}" + (f", a replay of {fact.replay_of}" if fact.replay_of else "")),
    ]
    if fact.input:
        lines += [Text(), Text(dump_yaml({"input": fact.input}).rstrip())]
    elif fact.input_left_out:
        lines += [Text(), Text(f"input: too large to show here; see tocsin executions show {fact.execution_id}")]
    lines += [Text(), attempts_table(fact.attempts)]
    if fact.attempts_left_out:
        earlier = counted(fact.attempts_left_out, "earlier attempt")
        lines.append(Text(f"and {earlier}; see tocsin executions show {fact.execution_id}", style="dim"))
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


def _resolved(letter: DeadLetter) -> list[RenderableType]:
    if letter.resolved is None:
        return []
    fact = letter.resolved.message
    actor = f" by {fact.by.identity}" if fact.by else ""
    execution = f" by execution {fact.execution_id}" if fact.execution_id else ""
    reason = f": {fact.reason}" if fact.reason else ""
    return [Text(), Text(f"resolved {local(letter.resolved.time)}{actor}{execution}{reason}", style="green")]


_STATUS_NAMES: Final = {Status.UNKNOWN: "open", Status.PLANNED: "pending", Status.ADMITTED: "running"}
"""Names of statuses that users know by another; no execution of an open replay is known yet."""


def _status_name(status: Status | None) -> str:
    return "open" if status is None else _STATUS_NAMES.get(status, status.value)


def _text(fact: PoisonMessage) -> str:
    return b64decode(fact.body).decode(errors="replace")
