"""The stages on the log of commits: fused, cut after each decision, restarted, separate, overtaken."""

import random
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from tests.commits.processes import NAMES, Installation, Runner, same_state
from tests.domain.given import KEY
from tocsin import subjects
from tocsin.domain import execution, ids
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Defined, Message, Recorded, Report, Started, Trigger
from tocsin.domain.events.message import validated
from tocsin.engine import commit_loop
from tocsin.engine.causes import Notice
from tocsin.engine.fold import KINDS
from tocsin.engine.kinds import IN_FORCE
from tocsin.engine.stage import BoundStage, BoundSubscription
from tocsin.engine.step import DONE, States, Step
from tocsin.ports import SequenceConflict
from tocsin.subjects import Stream

GRAPH = {
    "name": "nightly",
    "overlap_policy": "enqueue",
    "dead_letter": True,
    "dag": [
        {"name": "a", "function": "f.a"},
        {"name": "b", "function": "f.b", "depends_on": ["a"]},
        {"name": "c", "function": "f.c", "depends_on": ["a"]},
        {
            "name": "d",
            "function": "f.d",
            "depends_on": ["b", "c"],
            "retry": {"max_attempts": 2, "initial_delay": "1s"},
        },
    ],
}
Layout = Callable[[Installation], Runner]
LAYOUTS: dict[str, Layout] = {
    "fused": lambda i: Runner(i, [NAMES]),
    "cut": lambda i: Runner(i, [NAMES], cut=True),
    "restarted": lambda i: Runner(i, [NAMES], restarts=True),
    "cut and restarted": lambda i: Runner(i, [NAMES], cut=True, restarts=True),
    "separate": lambda i: Runner(i, [[name] for name in NAMES]),
    "separate, cut and restarted": lambda i: Runner(i, [[name] for name in NAMES], cut=True, restarts=True),
    "mixed": lambda i: Runner(i, [NAMES[:2], NAMES[2:]], order=random.Random(7)),  # noqa: S311
    "two copies": lambda i: Runner(i, [NAMES, NAMES], order=random.Random(3)),  # noqa: S311
}


async def play(layout: Layout) -> Installation:
    """Three triggers of a graph whose last step fails: once, and for good in the first execution."""
    installation = Installation()
    definition = JobDefinition.model_validate(GRAPH)
    await installation.store(Defined(job="nightly", definition=definition))
    runner = layout(installation)
    for number in range(3):
        installation.publish(Stream.REQUESTS, Trigger(), subjects.trigger("nightly"), f"t{number}")
    reported = set[int]()
    first: str | None = None
    for _ in range(100):
        await runner.run()
        news = await _claim(installation)
        for recorded in await installation.events():
            message = recorded.message
            first = first or getattr(message, "execution_id", None)
            if isinstance(message, Started) and recorded.sequence not in reported:
                reported.add(recorded.sequence)
                news += 1
                installation.publish(Stream.REPORTS, *_report(message, recorded.sequence, first))
        if not news and all(process.loop.agenda.next_at is None for process in runner._processes):
            break
        installation.clock.advance(1)
    await runner.rest()
    return installation


async def _claim(installation: Installation) -> int:
    """Claim what is dispatched, as a matcher does."""
    reader = installation.process(())
    await reader.read_on()
    claims = [
        Started(
            job=state.request.job,
            execution_id=state.request.execution_id,
            step=name,
            attempt=step.attempt,
            delivery=1,
            worker="w",
            agent="a",
        )
        for scope, state in reader.fold.states.items()
        if scope.startswith("execution.") and not state.is_over
        for name, step in state.steps.items()
        if step.phase is execution.Phase.DISPATCHED
    ]
    if claims:
        await installation.store(*claims)
    return len(claims)


def _report(started: Started, claim: int, first: str | None) -> tuple[Report, str]:
    fails = started.step == "d" and (started.attempt == 1 or started.execution_id == first)
    report = validated(
        Report,
        {
            "job": started.job,
            "execution_id": started.execution_id,
            "outcome": "failed" if fails else "completed",
            "step": started.step,
            "attempt": started.attempt,
            "delivery": 1,
            "token": "",
            "claim": claim,
            "proof": ids.claim_proof(KEY, started.execution_id, started.step, started.attempt, claim),
            **({"error": {"type": "E", "message": "m"}} if fails else {}),
        },
    )
    return report, subjects.subject_of(report)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_each_layout_decides_the_same_for_each_key(layout: str) -> None:
    expected = await (await play(LAYOUTS["fused"])).by_scope()
    found = await (await play(LAYOUTS[layout])).by_scope()
    assert found == expected
    ends = [events[-1] for scope, events in found.items() if scope.startswith("execution.")]
    assert sorted(ends) == ["completed", "completed", "failed"]
    assert sum(scope.startswith("dead-letter.") for scope in found) == 1


async def test_eventless_decision_is_made_again() -> None:
    installation, seen = Installation(), list[bool]()

    def decide(_: Recorded[Message], states: States, __: datetime) -> Step:
        seen.append(states(IN_FORCE(("nightly", None))) is not None)
        return DONE

    stage = BoundStage("looks", (BoundSubscription("looks", Stream.REQUESTS, ("trigger.>",), decide),))
    process = installation.process(stages=[stage])
    installation.publish(Stream.REQUESTS, Trigger(), subjects.trigger("nightly"), "t")
    await process.run()
    await installation.store(Defined(job="nightly", definition=JobDefinition.model_validate(GRAPH)))
    await process.run()
    assert seen == [False, True]


@pytest.mark.parametrize("layout", ["fused", "cut", "separate", "two copies"])
async def test_each_input_is_taken_and_none_is_open(layout: str) -> None:
    installation = await play(LAYOUTS[layout])
    reader = installation.process()
    await reader.read_on()
    number = reader.chain.head.number
    for stage in NAMES:
        position = reader.fold.position(stage, "events")
        assert position.above == ()
        assert position.floor >= number - 3  # its own last events may ride with the next commit
    assert reader.fold.position("planner", "REQUESTS").floor == 3
    assert not await reader.run()


async def test_overtaken_commit_is_undone_and_decided_again() -> None:
    installation = Installation()
    await installation.store(Defined(job="free", definition=JobDefinition(name="free", function="f")))
    process = installation.process()
    installation.publish(Stream.REQUESTS, Trigger(), subjects.trigger("free"), "t1")
    await process.read_on()
    await installation.store(
        Defined(job="other", definition=JobDefinition.model_validate({"name": "other", "function": "g"}))
    )
    assert await process.loop.run_once()  # refused
    fresh = installation.process()
    await fresh.read_on()
    assert same_state(process.fold, fresh.fold)
    assert await process.loop.run_once()
    [scope] = [scope for scope in await installation.by_scope() if scope.startswith("execution.")]
    assert (await installation.by_scope())[scope] == ["dispatched"]


async def test_proposal_on_an_undone_event_is_refused() -> None:
    """Another process stores an event of the same scope under the same number."""
    installation = Installation()
    process = installation.process()
    await process.read_on()
    number = process.chain.head.number + 1
    defined = [Defined(job="free", definition=JobDefinition(name="free", function=name)) for name in ("f", "g", "h")]
    proposed = [
        process.loop.propose("api", [event], expect=expect)
        for event, expect in zip(defined[:2], (0, number), strict=True)
    ]
    await installation.store(defined[2])
    while await process.loop.run_once():
        pass
    for stored in proposed:
        with pytest.raises(SequenceConflict):
            await stored


@pytest.mark.parametrize("slow", [False, True])
async def test_inputs_that_give_nothing_hold_no_other_up(slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001
    """More of them than a commit takes, or slow decisions, leave inputs behind that nothing else announces."""
    if slow:
        monkeypatch.setattr(commit_loop, "MAX_DECIDING_S", 0.0)
    installation = Installation()
    await installation.store(Defined(job="free", definition=JobDefinition(name="free", function="f")))
    junk = Report(
        job="free", execution_id="x", outcome="completed", step="main", attempt=1, delivery=1, token="", proof="no"
    )
    for _ in range(commit_loop.MAX_INPUTS + 5):
        installation.publish(Stream.REPORTS, junk, subjects.subject_of(junk))
    installation.publish(Stream.REQUESTS, Trigger(), subjects.trigger("free"), "t1")
    process = installation.process()
    await process.run()
    assert sum(scope.startswith("execution.") for scope in await installation.by_scope()) == 1


async def test_effects_leave_after_the_commit_only() -> None:
    installation = Installation()
    job = JobDefinition.model_validate({"name": "nightly", "function": "f", "overlap_policy": "enqueue"})
    await installation.store(Defined(job="nightly", definition=job))
    process = installation.process()
    for id_ in ("t1", "t2"):
        installation.publish(Stream.REQUESTS, Trigger(), subjects.trigger("nightly"), id_)
    await process.read_on()
    await installation.store(Defined(job="other", definition=JobDefinition(name="other", function="g")))
    assert await process.loop.run_once()
    assert installation.effects == []
    await process.run()
    assert [type(effect.signal).__name__ for _, effect in installation.effects if isinstance(effect, Notice)] == [
        "Waiting"
    ]


async def test_unreadable_state_breaks_its_key_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    installation = Installation()
    await installation.store(
        *(Defined(job=name, definition=JobDefinition(name=name, function="f")) for name in ("one", "two"))
    )
    kind = KINDS["ledger"]

    def breaks(state: Any, recorded: Recorded[Message]) -> Any:  # noqa: ANN401 - of any kind
        if subjects.job_of(recorded.subject) == "one":
            raise ValueError("newer")
        return kind.evolve(state, recorded)

    monkeypatch.setitem(KINDS, "ledger", type(kind)("ledger", kind.initial, breaks))
    reader = installation.process()
    await reader.read_on()
    assert reader.fold.in_force("two") is not None
    with pytest.raises(Exception, match="cannot be applied"):
        reader.fold.state(kind, subjects.ledger("one"))
