"""One dead letter, in every detail."""

from base64 import b64decode
from itertools import zip_longest

import yaml
from rich.console import RenderableType
from rich.text import Text

from ...domain.dead_letter import DeadLetter
from ...domain.events import DeadLettered, PoisonMessage
from ...domain.execution import Status
from ...services.operations.dead_letters import Letter
from ..executions.attempts import attempts_table
from ..output.format import local, state
from ..output.tables import table

OPEN = "open"
"""A replay of which nothing is known yet."""


def as_json(letter: Letter) -> dict[str, object]:
    """The dead letter for programs."""
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
                "number": one.fact.number,
                "time": one.at,
                "execution_id": one.execution_id,
                "status": _word(status),
                "input": one.fact.input,
                "by": one.fact.by,
                "reason": one.fact.reason,
            }
            for one, status in zip(letter.state.replays, letter.replays, strict=True)
        ],
    }


def page(letter: Letter) -> list[RenderableType]:
    """The dead letter for people."""
    kept = letter.state.fact
    is_over = "resolved" if letter.state.resolved else "unresolved"
    head = Text.assemble((letter.job, "bold"), "  ", state(is_over))
    shown: list[RenderableType] = [head, Text(letter.id, style="dim")]
    shown += _of_execution(kept) if isinstance(kept, DeadLettered) else _of_message(kept)
    return [*shown, *_replays(letter), *_resolution(letter.state)]


def _of_execution(fact: DeadLettered) -> list[RenderableType]:
    shown: list[RenderableType] = [
        Text(f"{fact.trigger}, scheduled for {local(fact.scheduled_time)}", style="dim"),
        Text(f"execution {fact.execution_id}" + (f", a replay of {fact.replay_of}" if fact.replay_of else "")),
    ]
    if fact.input:
        shown += [Text(), Text(yaml.safe_dump({"input": fact.input}, sort_keys=False, allow_unicode=True).rstrip())]
    shown += [Text(), attempts_table(fact.attempts)]
    if error := fact.last_error:
        trace = (error.traceback or "").rstrip()
        shown += [Text(), Text(trace or f"{error.type}: {error.message}", style="red")]
    return shown


def _of_message(fact: PoisonMessage) -> list[RenderableType]:
    return [
        Text(f"a message that {fact.durable} could not use: {fact.subject}, stored as {fact.sequence}"),
        Text(fact.reason, style="red"),
        Text(),
        Text(_text(fact) or "(it was empty)"),
    ]


def _replays(letter: Letter) -> list[RenderableType]:
    rows = [
        (one.fact.number, state(_word(status)), one.at, one.fact.by.identity if one.fact.by else "", one.execution_id)
        for one, status in zip_longest(letter.state.replays, letter.replays)
    ]
    headings = ("REPLAY", "STATUS", "ASKED FOR", "BY", "EXECUTION")
    return [Text(), table(headings, rows, empty="", least=("BY", "ASKED FOR"))] if rows else []


def _resolution(letter: DeadLetter) -> list[RenderableType]:
    if letter.resolved is None:
        return []
    fact = letter.resolved.message
    who = f" by {fact.by.identity}" if fact.by else ""
    how = f" by execution {fact.execution_id}" if fact.execution_id else ""
    why = f": {fact.reason}" if fact.reason else ""
    return [Text(), Text(f"resolved {local(letter.resolved.time)}{who}{how}{why}", style="green")]


def _word(status: Status | None) -> str:
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
