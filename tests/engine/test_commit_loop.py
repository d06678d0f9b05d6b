"""The stages on the log of commits: fused, cut after each decision, restarted, separate, overtaken."""

import random
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest

from tests.domain.given import KEY
from tocsin import subjects
from tocsin.adapters.memory.commit_log import InMemoryCommitLog
from tocsin.domain import execution, ids
from tocsin.domain.commit import Commit, Event, Head, Seal
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Defined, Message, Recorded, Report, Started, Trigger
from tocsin.engine.commit_loop import CommitLoop
from tocsin.engine.commit_writer import Chain, CommitWriter
from tocsin.engine.fold import KINDS, Fold
from tocsin.engine.lock_projection import LockProjection
from tocsin.engine.stage import BoundStage
from tocsin.stages.dag_advancer.stage import DAG_ADVANCER, DagAdvancer
from tocsin.stages.dead_letter_sink import DEAD_LETTER_SINK, DeadLetterSink
from tocsin.stages.lock_keeper import LOCK_KEEPER, LockKeeper
from tocsin.stages.planner import PLANNER, Planner
from tocsin.stages.retrier import RETRIER, Retrier
from tocsin.subjects import Stream
from tocsin.testing import ManualClock

SEAL = Seal("tocsin", 0, {"k1": b"1" * 32})
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
NAMES = ("planner", "lock_keeper", "dag_advancer", "retrier", "dead_letter_sink")


def bound(names: Collection[str] = NAMES) -> list[BoundStage]:
    projection: Any = LockProjection(None, None, None)  # type: ignore[arg-type] # it shows locks, which no decision needs
    stages = {
        "planner": lambda: PLANNER.bind(Planner(projection, KEY)),
        "lock_keeper": lambda: LOCK_KEEPER.bind(LockKeeper(projection, KEY)),
        "dag_advancer": lambda: DAG_ADVANCER.bind(DagAdvancer(MagicMock(), KEY)),  # its own timers are not used
        "retrier": lambda: RETRIER.bind(Retrier(KEY)),
        "dead_letter_sink": lambda: DEAD_LETTER_SINK.bind(DeadLetterSink()),
    }
    return [stages[name]() for name in names]


class Installation:
    """A log of commits, streams of inputs, and processes that run stages."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log = InMemoryCommitLog(self.clock)
        self.inputs: dict[Stream, list[Recorded[Message]]] = defaultdict(list)
        self.effects = list[tuple[str, object]]()

    def publish(self, stream: Stream, message: Message, subject: str, message_id: str | None = None) -> None:
        stored = self.inputs[stream]
        stored.append(Recorded(message, subject, len(stored) + 1, self.clock.now(), message_id))

    def process(self, names: Collection[str] = NAMES, *, cut: bool = False) -> "Process":
        return Process(self, names, cut=cut)

    async def store(self, *events: Message) -> None:
        """Events that the test decides."""
        reader = self.process(())
        await reader.read_on()
        drafts = [Event(subjects.subject_of(event), "test", "@", msgspec.Raw(event.encode())) for event in events]
        await reader.writer.append(
            SEAL.write(reader.chain.head, writer="test", at=self.clock.now(), taken={}, events=drafts)
        )

    async def commits(self) -> list[Commit]:
        chain, after, commits = Chain(SEAL, Head("k1")), 0, list[Commit]()
        while (stored := await self.log.next(0, after=after)) is not None:
            after = stored.sequence
            if (commit := chain.take(stored)) is not None:
                commits.append(commit)
        return commits

    async def events(self) -> list[Recorded[Message]]:
        return [
            Recorded(subjects.decode(event.subject, bytes(event.body)), event.subject, number, commit.at)
            for commit in await self.commits()
            for number, event in enumerate(commit.events, commit.first)
        ]

    async def by_scope(self) -> dict[str, list[str]]:
        found = defaultdict[str, list[str]](list)
        for recorded in await self.events():
            kind = str(getattr(recorded.message, "type", None) or getattr(recorded.message, "event", ""))
            found[subjects.scope_of(recorded.message)].append(kind)
        return dict(found)


class Process:
    """One process with some of the stages."""

    def __init__(self, installation: Installation, names: Collection[str], *, cut: bool = False) -> None:
        self.installation = installation
        self.fold = Fold()
        self.chain = Chain(SEAL, Head("k1"))
        self.writer = CommitWriter(installation.log, 0, self.chain, installation.clock)
        self.loop = CommitLoop(
            bound(names),
            self.fold,
            self.writer,
            installation.clock,
            name="-".join(names) or "none",
            on_effects=self._take_effects,
            is_cut_after_each_call=cut,
        )
        self._offered: dict[Stream, int] = defaultdict(int)

    async def _take_effects(self, effects: Sequence[tuple[str, object]]) -> None:
        self.installation.effects += effects

    async def read_on(self) -> None:
        """Fold what others stored, and take the inputs that came."""
        while (stored := await self.installation.log.next(0, after=self.chain.head.sequence)) is not None:
            if (commit := self.chain.take(stored)) is not None:
                self.loop.apply(commit)
        for stream, inputs in self.installation.inputs.items():
            for recorded in inputs[self._offered[stream] :]:
                self.loop.offer(stream, recorded)
            self._offered[stream] = len(inputs)

    async def run(self) -> bool:
        """Decide until nothing is left; whether anything was stored."""
        await self.read_on()
        has_stored = False
        while await self.loop.run_once():
            has_stored = True
        return has_stored


Layout = Callable[[Installation], "Runner"]


class Runner:
    """The processes of a layout, each of which may be a fresh one each time."""

    def __init__(
        self,
        installation: Installation,
        groups: Sequence[Collection[str]],
        *,
        cut: bool = False,
        restarts: bool = False,
        order: random.Random | None = None,
    ) -> None:
        self._installation = installation
        self._groups = groups
        self._cut = cut
        self._restarts = restarts
        self._order = order or random.Random(0)  # noqa: S311
        self._processes = [installation.process(group, cut=cut) for group in groups]

    async def run(self) -> None:
        """Run all processes until nothing is left to decide."""
        is_idle = False
        while not is_idle:
            is_idle = True
            self._order.shuffle(self._processes)
            for number, process in enumerate(self._processes):
                await process.read_on()
                if await process.loop.run_once():
                    is_idle = False
                    if self._restarts:
                        fresh = self._installation.process([s.name for s in process.loop._stages], cut=self._cut)
                        await fresh.read_on()
                        assert same_state(fresh.fold, process.fold)
                        self._processes[number] = fresh

    async def rest(self) -> None:
        """Have positions stored that no event took along."""
        self._installation.clock.advance(1.5)
        await self.run()


def same_state(one: Fold, other: Fold) -> bool:
    return (one.states, one.numbers, one.positions, one._deadlines) == (
        other.states,
        other.numbers,
        other.positions,
        other._deadlines,
    )


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
        if not news and all(process.fold.next_deadline() is None for process in runner._processes):
            break
        installation.clock.advance(1)
    await runner.rest()
    return installation


async def _claim(installation: Installation) -> int:
    """Claim what is dispatched, as a matcher does."""
    reader = installation.process(())
    await reader.read_on()
    claims = [
        Started.trusted(
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
    report = Report.model_validate(
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
        }
    )
    return report, subjects.subject_of(report)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_each_key_has_the_same_events_in_every_layout(layout: str) -> None:
    expected = await (await play(LAYOUTS["fused"])).by_scope()
    found = await (await play(LAYOUTS[layout])).by_scope()
    assert found == expected
    ends = [events[-1] for scope, events in found.items() if scope.startswith("execution.")]
    assert sorted(ends) == ["completed", "completed", "failed"]
    assert sum(scope.startswith("dead-letter.") for scope in found) == 1


@pytest.mark.parametrize("layout", ["fused", "cut", "separate", "two copies"])
async def test_every_input_is_taken_once_and_nothing_is_open(layout: str) -> None:
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


async def test_effects_leave_after_the_commit_only() -> None:
    installation = Installation()
    job = JobDefinition.model_validate({"name": "nightly", "function": "f", "overlap_policy": "skip"})
    await installation.store(Defined(job="nightly", definition=job))
    process = installation.process()
    installation.publish(Stream.REQUESTS, Trigger(), subjects.trigger("nightly"), "t1")
    await process.read_on()
    await installation.store(Defined(job="other", definition=JobDefinition(name="other", function="g")))
    assert await process.loop.run_once()
    assert installation.effects == []
    await process.run()
    assert [type(effect).__name__ for _, effect in installation.effects] == ["Held"]


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


def test_deadlines_come_from_states_and_survive_an_undo() -> None:
    fold = Fold()
    assert fold.next_deadline() is None
    assert list(fold.due(datetime.max.replace(tzinfo=ManualClock().now().tzinfo) - timedelta(days=1))) == []
