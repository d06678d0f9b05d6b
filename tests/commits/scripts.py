"""Scripts of what happens to an installation, played on the log of commits.

After each action every stage runs until nothing is left to decide. Each layout then has the same events for each key, but for
numbers: ids of executions are made from jobs, instants and message ids.
"""

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from tests.commits.processes import NAMES, Installation, Runner
from tests.domain.given import KEY
from tocsin import subjects
from tocsin.domain import dead_letter, execution, ids, ledger
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    CancelRequest,
    Message,
    Recorded,
    Replayed,
    Report,
    Started,
    Trigger,
    unfold,
)
from tocsin.domain.events.message import validated
from tocsin.domain.execution import Phase
from tocsin.subjects import Stream

Action: TypeAlias = dict[str, Any]
"""What happens: `do` names it, and the other fields say to what."""
Events: TypeAlias = dict[str, list[str]]
"""What was decided about each key, oldest first."""

RETRY: Final = {"max_attempts": 2, "initial_delay": "1s", "multiplier": 1}
JOBS: Final[Sequence[dict[str, Any]]] = (
    {"name": "free", "function": "f", "overlap_policy": "allow", "schedule": "*/5 * * * * *"},
    {"name": "skips", "function": "f", "overlap_policy": "skip", "schedule": "*/2 * * * * *", "retry": RETRY},
    {"name": "waits", "function": "f", "overlap_policy": "enqueue", "dead_letter": True, "retry": RETRY},
    {"name": "cancels", "function": "f", "overlap_policy": "cancel_previous"},
    {"name": "short", "function": "f", "overlap_policy": "enqueue", "max_waiting": 1},
    {
        "name": "graph",
        "dead_letter": True,
        "schedule": "*/7 * * * * *",
        "dag": [
            {"name": "a", "function": "f"},
            {"name": "b", "function": "f", "depends_on": ["a"], "retry": RETRY},
            {"name": "c", "function": "f", "depends_on": ["a"]},
            {"name": "d", "function": "f", "depends_on": ["b", "c"]},
        ],
    },
    {
        "name": "workflow",
        "dag": [{"name": "a", "function": "f"}, {"name": "b", "function": "f"}],
        "overlap_policy": "allow",
    },
)


_NUMBER: Final = re.compile(r"-replays-0-\d+\.>$")
"""The end of the id of a dead letter that is made of an event's number."""
_LETTER: Final = re.compile(r"dead-letter\.(?!.*-replays-)")


class Commits:
    """The log of commits, in a layout of processes."""

    def __init__(
        self, groups: Sequence[Sequence[str]] = (NAMES,), *, cut: bool = False, restarts: bool = False
    ) -> None:
        self._installation = Installation()
        self._runner = Runner(self._installation, groups, cut=cut, restarts=restarts)
        self.clock = self._installation.clock

    async def given(self, *events: Message) -> None:
        await self._installation.store(*events)

    async def publish(self, stream: Stream, message: Message, subject: str, message_id: str) -> None:
        self._installation.publish(stream, message, subject, message_id)

    async def run(self) -> None:
        await self._runner.run()

    async def events(self) -> list[Recorded[Message]]:
        return list(unfold(await self._installation.events()))


async def play(script: Sequence[Action], engine: Commits) -> Events:
    """Play a script, and return what was decided about each key."""
    for number, action in enumerate(script):
        await _act(engine, action, number)
        await engine.run()
    decided = dict[str, list[str]]()
    for recorded in await engine.events():
        key = _NUMBER.sub("-replays-N.>", subjects.scope_of(recorded.message))
        decided.setdefault(key, []).append(_told(recorded.message))
    return decided


async def _act(engine: Commits, action: Action, number: int) -> None:  # noqa: C901 - one case for each action
    events = await engine.events()
    match action["do"]:
        case "define":
            definition = JobDefinition.model_validate(action["job"])
            await engine.given(*ledger.define(_ledger(events, definition.name), definition))
        case "pause" | "resume" | "delete" as change:
            state = _ledger(events, action["job"])
            if state.current is not None and state.current.definition:
                await engine.given(*getattr(ledger, change)(state, action["job"]))
        case "advance":
            engine.clock.advance(action["seconds"])
        case "trigger":
            subject = subjects.trigger(action["job"])
            await engine.publish(Stream.REQUESTS, Trigger(), subject, action["id"])
        case "cancel":
            if open_ := [state for state in _executions(events) if not state.is_over]:
                asked = open_[action["index"] % len(open_)].request
                subject = subjects.cancel(asked.job, asked.execution_id)
                await engine.publish(Stream.REQUESTS, CancelRequest(), subject, f"cancel-{number}")
        case "claim":
            await engine.given(*_claims(events))
        case "report":
            await _report(engine, events, action)
        case "replay":
            letters = [s for s in {subjects.scope_of(r.message) for r in events} if _LETTER.match(s)]
            if letters:
                scope = sorted(letters)[action["index"] % len(letters)]
                letter = dead_letter.fold(r for r in events if subjects.scope_of(r.message) == scope)
                number = len(letter.replays) + 1
                again = ids.replay_id(letter.fact.job, letter.fact.id, number, engine.clock.now())
                newest = max(
                    r.sequence for r in events if subjects.scope_of(r.message) == subjects.ledger(letter.fact.job)
                )
                await engine.given(
                    Replayed(job=letter.fact.job, id=letter.fact.id, number=number, execution_id=again, ledger=newest)
                )


async def _report(engine: Commits, events: Sequence[Recorded[Message]], action: Action) -> None:
    claimed = [
        (state, name, step)
        for state in _executions(events)
        for name, step in state.steps.items()
        if step.phase is Phase.STARTED
    ]
    if not claimed:
        return
    state, name, step = claimed[action["index"] % len(claimed)]
    asked, claim = state.request, step.claim
    assert claim is not None
    fields = {
        "job": asked.job,
        "execution_id": asked.execution_id,
        "outcome": action["outcome"],
        "step": name,
        "attempt": step.attempt,
        "delivery": 1,
        "token": "",
        "claim": claim,
        "proof": ids.claim_proof(KEY, asked.execution_id, name, step.attempt, claim),
    }
    if action["outcome"] == "failed":
        fields["error"] = {"type": "E", "message": "m"}
    report = validated(Report, fields)
    await engine.publish(Stream.REPORTS, report, subjects.subject_of(report), f"{asked.execution_id}-{name}-{claim}")


def _claims(events: Sequence[Recorded[Message]]) -> Iterator[Started]:
    for state in _executions(events):
        for name, step in state.steps.items():
            if step.phase is Phase.DISPATCHED:
                yield Started(
                    job=state.request.job,
                    execution_id=state.request.execution_id,
                    step=name,
                    attempt=step.attempt,
                    delivery=1,
                    worker="w",
                )


def _executions(events: Sequence[Recorded[Message]]) -> list[execution.Execution]:
    by_scope = dict[str, list[Recorded[Message]]]()
    for recorded in events:
        by_scope.setdefault(subjects.scope_of(recorded.message), []).append(recorded)
    states = [execution.fold(of) for scope, of in sorted(by_scope.items()) if scope.startswith("execution.")]
    return [state for state in states if state.requested is not None]


def _ledger(events: Sequence[Recorded[Message]], job: str) -> ledger.Ledger:
    return ledger.fold(r for r in events if subjects.scope_of(r.message) == subjects.ledger(job))


def _told(message: Message) -> str:
    """An event without numbers, times and tokens, which layouts may change."""
    fields = [getattr(message, "type", None) or getattr(message, "event", "")]
    for name in (
        "step",
        "attempt",
        "outcome",
        "reason",
        "status",
        "result",
        "count",
        "trigger",
        "execution_id",
        "code",
        "number",
    ):
        value = getattr(message, name, None)
        if value is not None and not (name == "reason" and len(str(value)) > 40):
            fields.append(f"{name}={value}")
    return " ".join(map(str, fields))


def script(seed: int, length: int = 40) -> list[Action]:
    """Return a script by chance."""
    chance = random.Random(seed)  # noqa: S311 - the same script for each seed
    names = [job["name"] for job in chance.sample(JOBS, 4)]
    actions: list[Action] = [{"do": "define", "job": job} for job in JOBS if job["name"] in names]
    for number in range(length):
        job = chance.choice(names)
        actions.append(
            chance.choices(
                [
                    {"do": "trigger", "job": job, "id": f"m{number}"},
                    {"do": "advance", "seconds": chance.choice([0.5, 1, 2, 5])},
                    {"do": "claim"},
                    {"do": "report", "outcome": chance.choice(["completed", "completed", "failed"]), "index": number},
                    {"do": "cancel", "index": number},
                    {"do": "replay", "index": number},
                    {"do": chance.choice(["pause", "resume", "delete"]), "job": job},
                    {
                        "do": "define",
                        "job": {
                            **next(j for j in JOBS if j["name"] == job),
                            "overlap_policy": chance.choice(["allow", "skip", "enqueue"]),
                        },
                    },
                ],
                weights=[6, 5, 6, 8, 1, 1, 1, 1],
            )[0]
        )
    return actions
