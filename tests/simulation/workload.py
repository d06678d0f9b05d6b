"""What users do: the jobs that they have, what they change, and how their handlers behave."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Literal, TypeAlias

from tocsin.domain.definition import JobDefinition
from tocsin.worker.context import Context
from tocsin.worker.errors import NonRetryableError

from .process import Process

FUNCTION: Final = "f"
QUEUES: Final = ("default", "heavy")
NAMES: Final = ("a", "b.c", "d-e")

Verb: TypeAlias = Literal["trigger", "pause", "resume", "edit", "delete", "define", "cancel"]

_SCHEDULES: Final = ("*/3 * * * * *", "*/5 * * * * *", "*/7 * * * * *", "*/4 * * * * *", "@every 3s", "@every 5s", None)
_POLICIES: Final = ("skip", "allow", "cancel_previous", "enqueue")
_GRAPHS: Final[tuple[dict[str, tuple[str, ...]], ...]] = (
    {},
    {},
    {},
    {"one": (), "two": ("one",)},
    {"top": (), "left": ("top",), "right": ("top",), "end": ("left", "right")},
    {"one": (), "two": (), "both": ("one", "two")},
)


def definition(chance: Random, name: str) -> JobDefinition:
    """Some job."""
    graph = chance.choice(_GRAPHS)
    retry = {
        "max_attempts": chance.choice((1, 2, 3)),
        "initial_delay": chance.choice((0.3, 1.0)),
        "multiplier": chance.choice((1.0, 2.0)),
        "max_delay": chance.choice((1.5, 4.0)),
        "jitter": chance.choice((0.0, 0.1, 0.5)),
        "non_retryable_errors": chance.choice(((), ("ValueError",))),
    }
    fields: dict[str, Any] = {
        "name": name,
        "schedule": chance.choice(_SCHEDULES),
        "timeout": chance.choice((0.8, 2.0)),
        "retry": retry,
        "overlap_policy": chance.choice(_POLICIES),
        "dead_letter": chance.random() < 0.6,
        "queue": chance.choice(QUEUES),
        "catch_up": chance.choice(("once", "skip", "all")),
        "catch_up_limit": chance.choice((1, 3)),
        "starting_deadline": chance.choice((None, None, 5.0)),
        "enabled": chance.random() < 0.93,
    }
    if graph:
        steps = [{"name": step, "function": FUNCTION, "depends_on": needs} for step, needs in graph.items()]
        chance.shuffle(steps)
        fields["dag"] = steps
    else:
        fields["function"] = FUNCTION
    return JobDefinition.model_validate(fields)


@dataclass(frozen=True, slots=True)
class Action:
    """What somebody does at some second."""

    at: float
    verb: Verb
    job: str
    definition: JobDefinition | None = None
    message_id: str = ""
    times: int = 1
    """How often the same message is sent, or how many are meant."""
    what: str = ""
    """Which executions are meant: those that were `planned`, or `admitted`."""


_VERBS: Final[tuple[Verb, ...]] = (
    *("trigger", "trigger", "trigger", "trigger", "pause", "resume", "resume"),
    *("edit", "edit", "delete", "define", "cancel", "cancel"),
)


def actions(chance: Random, until: float) -> list[Action]:
    """Some jobs, and what is done with them."""
    names = NAMES[: chance.choice((1, 1, 2, 2, 3))]
    done = [Action(chance.uniform(0.0, 1.0), "define", name, definition(chance, name)) for name in names]
    for number in range(chance.randint(0, 7)):
        verb = chance.choice(_VERBS)
        name = chance.choice(names)
        done.append(
            Action(
                at=chance.uniform(1.5, until),
                verb=verb,
                job=name,
                definition=definition(chance, name) if verb in {"edit", "define"} else None,
                message_id=f"m{chance.choice((number, 0))}" if verb == "trigger" else "",
                times=chance.choice((1, 1, 2)),
                what=chance.choice(("planned", "admitted")),
            )
        )
    return sorted(done, key=lambda action: action.at)


Run: TypeAlias = tuple[str, str, int, int, str]
"""An attempt that a handler began: execution, step, attempt, delivery, worker."""


def handler(seed: int, process: Process, runs: list[Run]) -> Callable[[Context], Awaitable[object]]:
    """A handler that does well mostly; how it behaves is a matter of the task and of nothing else."""

    async def handle(context: Context) -> object:
        task = f"{context.execution_id}/{context.step}/{context.attempt}/{context.delivery}"
        chance = Random(f"{seed}/{task}")
        runs.append((context.execution_id, context.step, context.attempt, context.delivery, context.worker))
        draw = chance.random()
        try:
            await process.wait(chance.choice((0.01, 0.1, 0.4, 1.2)))
            if draw < 0.12:
                raise RuntimeError("again, please")
            if draw < 0.17:
                raise ValueError("perhaps")
            if draw < 0.22:
                raise NonRetryableError("never")
            if draw < 0.32:
                await process.wait(chance.uniform(0.5, 8.0))
        except asyncio.CancelledError:
            if draw < 0.27 and process.is_alive:
                return "done all the same"
            raise
        return {"by": context.worker, "attempt": context.attempt}

    return handle
