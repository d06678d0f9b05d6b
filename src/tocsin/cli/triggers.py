"""`tocsin triggers`: test, ignored."""

import json
from dataclasses import asdict
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError
from rich.text import Text

from .input.values import JobName, json_of
from .output.tables import print_table
from .runtime.errors import UsageError
from .runtime.session import Session

if TYPE_CHECKING:
    from ..services.trigger_test import GivenEvent, TriggerAnswer


def test(
    session: Session,
    job: JobName,
    event: Annotated[
        str,
        typer.Option(
            metavar="JSON|@FILE|FILE", help='An object such as {"subject": "orders.new", "body": {"total": 120}}.'
        ),
    ],
) -> None:
    """Explain what an event would do to the triggers of a job, without any effect.

    For each trigger: whether its condition is true, the key of the event, the input of the execution, or why nothing would start. The
    subject of the end of an execution is the job and the end, such as `extract.completed`.

    Example: `tocsin triggers test invoice --event event.json`
    """
    given = _event(event)
    answers = session.ask(lambda operator: operator.test_triggers(job, given))
    print_table(
        session.output,
        [asdict(answer) for answer in answers],
        ("TRIGGER", "OUTCOME", "KEY", "INPUT", "REASON"),
        map(_row, answers),
        empty=f"{job} has no triggers. Add some under `triggers:` in its definition.",
    )


def ignored(
    session: Session,
    job: JobName,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="The most events to show.")] = 50,
    sequence: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Only events with this position in their stream."),
    ] = None,
) -> None:
    """List the newest events that started no execution of a job, with the reason.

    `condition_false`: `when` was false (recorded with `record: all`). `duplicate`: an earlier event with the key started the
    execution that is shown. `debounced`: a later event with the key started the execution. `trigger_removed`: the trigger
    was removed, or its job paused, before the end of the debounce. `too_many_keys`: the event waits in its stream until fewer keys of
    the trigger have a debounce (`triggers.max_keys`).

    Example: `tocsin triggers ignored invoice --sequence 1042`
    """
    events = session.ask(lambda operator: operator.ignored_events(job, limit=limit, sequence=sequence))
    print_table(
        session.output,
        [asdict(event) for event in events],
        ("TIME", "STREAM", "SEQUENCE", "SUBJECT", "REASON", "KEY", "EXECUTION"),
        map(attrgetter("time", "stream", "sequence", "subject", "reason", "key", "execution_id"), events),
        empty=f"No event that started nothing is recorded for {job}. With `record: all`, its triggers record "
        "also events whose condition is false.",
    )


def _event(written: str) -> "GivenEvent":
    from ..services.trigger_test import GivenEvent  # noqa: PLC0415 - help does not need it

    is_text = written.startswith(("{", "@"))
    document: dict[str, Any] | None = json_of("--event", written if is_text else f"@{written}", dict)
    try:
        return GivenEvent.model_validate(document or {})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise UsageError(f"--event: `{field}`: {first['msg']}", code="invalid-event") from None


def _row(answer: "TriggerAnswer") -> tuple[object, ...]:
    starts = answer.outcome == "starts"
    reason = ""
    if answer.reason:
        reason = f"`{answer.field}`: {answer.reason}" if answer.field else answer.reason
    elif answer.after_quiet:
        reason = f"after {answer.after_quiet} of quiet"
    return (
        answer.source,
        Text(answer.outcome, style="green" if starts else "yellow"),
        answer.key or "",
        "" if answer.input is None else json.dumps(answer.input, ensure_ascii=False),
        reason,
    )
