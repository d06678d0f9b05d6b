"""The page and the JSON document of one dead letter."""

from base64 import b64decode
from itertools import zip_longest

from rich.console import RenderableType
from rich.text import Text

from ...adapters.files import dump_yaml
from ...domain.dead_letter import DeadLetter
from ...domain.events import DeadLettered, PoisonMessage
from ...domain.execution import Status
from ...domain.text import counted
from ...services.operations.dead_letter_lookup import Letter
from ..executions.page import attempts_table
from ..output.format import local, state
from ..output.tables import table


def as_json(letter: Letter) -> dict[str, object]:
    fact, resolved = letter.state.fact, letter.state.resolved
    return {
        "id": letter.id,
        "job": letter.job,
        "resolved": resolved is not None,
        "resolution": None if resolved is None else {"time": resolved.time, **resolved.message.document()},
        "letter": fact.document(exclude_none=True),
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
        case None | Status.UNKNOWN:  # no execution of the replay is known yet
            return "open"
        case Status.PLANNED:
            return "pending"
        case Status.ADMITTED:
            return "running"
        case _:
            return status.value


def _text(fact: PoisonMessage) -> str:
    return b64decode(fact.body).decode(errors="replace")
