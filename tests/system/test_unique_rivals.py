"""Property of unique keys: of rivals, one is accepted, also if processes are killed meanwhile.

Each example sends its jobs through two gateways to two planners, and kills some of these processes. A client that has no answer sends its job again
with the same id, as the documentation says.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import combinations, count
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.ports import free_port
from tests.properties import examples
from tests.stored_events import uuid7
from tests.system.processes import Program, Site
from tests.system.test_unique_keys import LEASE
from tocsin import bootstrap, subjects
from tocsin.domain.events import Admitted, Cancelled, Enqueued, KeyTaken, Skipped

OTHERS: Final = tuple(stage for stage in bootstrap.STAGE_NAMES if stage != "planner")
JOB: Final = "ojs.work"
PERIOD_S: Final = 1
Strategy: TypeAlias = Literal["reject", "ignore", "replace"]
Victim: TypeAlias = Literal["gateway 0", "gateway 1", "planner 0", "planner 1"]
_examples = count()


class Wish(NamedTuple):
    """A job that a client enqueues."""

    key: int
    on_conflict: Strategy
    gateway: int


class Plan(NamedTuple):
    """An example: the jobs, and the processes that die after so many answers.

    With `has_period`, an earlier job counts for `PERIOD_S`. Nothing is replaced then.
    """

    wishes: Sequence[Wish]
    deaths: Sequence[tuple[Victim, int]]
    has_period: bool


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw an example."""
    has_period = draw(st.booleans())
    strategies = st.sampled_from(["reject", "ignore"] if has_period else ["reject", "ignore", "replace"])
    wishes = draw(st.lists(st.builds(Wish, st.integers(0, 2), strategies, st.integers(0, 1)), min_size=8, max_size=24))
    victims: st.SearchStrategy[Victim] = st.sampled_from(["gateway 0", "gateway 1", "planner 0", "planner 1"])
    deaths = draw(st.lists(st.tuples(victims, st.integers(0, len(wishes) // 2)), min_size=1, max_size=3))
    return Plan(wishes, deaths, has_period)


class Stage:
    """Two gateways and two planners, each of which can be replaced."""

    def __init__(self, tocsin: Site) -> None:
        self.tocsin = tocsin
        self.ports = [free_port(), free_port()]
        self.programs: dict[Victim, Program] = {}

    @classmethod
    async def started(cls, tocsin: Site) -> "Stage":
        """Start everything."""
        stage = cls(tocsin)
        tocsin.start(*OTHERS)
        for victim in ("gateway 0", "gateway 1", "planner 0", "planner 1"):
            stage.start(victim)
        await tocsin.ready()
        return stage

    @property
    def urls(self) -> list[str]:
        """Return where the gateways answer."""
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    def start(self, victim: Victim) -> None:
        """Start a gateway or a planner."""
        kind, number = victim.split()
        self.programs[victim] = (
            self.tocsin.start_gateway(self.ports[int(number)]) if kind == "gateway" else self.tocsin.start("planner")
        )

    def replace(self, victim: Victim) -> None:
        """Kill -9, and start again."""
        program = self.programs[victim]
        program.kill()
        self.tocsin.programs.remove(program)
        self.start(victim)


class Sent(NamedTuple):
    """A job, and the answers to it; those of unknown outcome are left out."""

    wish: Wish
    id: str
    answers: Sequence[httpx.Response]


async def send(stage: Stage, client: httpx.AsyncClient, wish: Wish, id_: str, body: dict[str, Any]) -> Sent:
    """Enqueue a job, again with the same id until its outcome is known."""
    answers: list[httpx.Response] = []

    async def is_answered() -> bool:
        number = (wish.gateway + len(answers)) % 2
        for url in (stage.urls[number], stage.urls[1 - number]):
            with suppress(httpx.TransportError):
                answer = await client.post(f"{url}/ojs/v1/jobs", json={**body, "id": id_})
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    answers.append(answer)
                    return True
        return False

    await stage.tocsin.until(is_answered)
    return Sent(wish, id_, answers)


async def play(stage: Stage, plan: Plan, name: str) -> list[Sent]:
    """Enqueue all jobs of an example at the same time."""
    answered = 0
    deaths = sorted(plan.deaths, key=lambda death: death[1])

    async with httpx.AsyncClient(timeout=20, limits=httpx.Limits(max_connections=None)) as client:

        async def enqueue(wish: Wish) -> Sent:
            nonlocal answered
            unique: dict[str, Any] = {"keys": ["args"], "on_conflict": wish.on_conflict}
            if plan.has_period:
                unique["period"] = f"PT{PERIOD_S}S"
            body = {
                "type": "work",
                "args": [0.01, f"{name}-{wish.key}"],
                "options": {"queue": "work", "unique": unique},
            }
            sent = await send(stage, client, wish, uuid7(stage.tocsin.installation.clock.now()), body)
            answered += 1
            while deaths and deaths[0][1] <= answered:
                stage.replace(deaths.pop(0)[0])
            return sent

        return await asyncio.gather(*map(enqueue, plan.wishes))


@pytest.fixture
async def stage(ojs_site: Site) -> AsyncIterator[Stage]:
    """Start the processes of all examples; at last, a worker does the jobs, and the log is audited."""
    stage = await Stage.started(ojs_site)
    yield stage
    await ojs_site.ready()
    ojs_site.start_ojs_worker("w", LEASE, *stage.urls)
    await ojs_site.checked()


@pytest.mark.slow
@settings(
    max_examples=examples(15),
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
@given(plan=plans())
async def test_one_of_the_rivals_is_accepted(stage: Stage, plan: Plan) -> None:
    await check(stage.tocsin, plan, await play(stage, plan, f"e{next(_examples)}"))


async def check(tocsin: Site, plan: Plan, sent: Sequence[Sent]) -> None:
    """Compare the log with the rule, and the answers with the log."""
    ids = {job.id for job in sent}

    async def outcomes() -> tuple[set[str], set[str]] | None:
        begun = {fact.execution_id for fact in await tocsin.of_executions(JOB, Admitted)} & ids
        skipped = {fact.execution_id for fact in await tocsin.of_executions(JOB, Skipped)} & ids
        return (begun, skipped) if ids == begun | skipped else None

    outcome = await tocsin.until(outcomes)
    assert outcome is not None
    begun, skipped = outcome
    assert not begun & skipped
    cancelled = {fact.execution_id for fact in await tocsin.of_executions(JOB, Cancelled)}
    taken = [recorded.message for recorded in await tocsin.facts(subjects.filter_for("unique.taken"), KeyTaken)]
    rivals: dict[int, list[Sent]] = defaultdict(list)
    for job in sent:
        rivals[job.wish.key].append(job)
        check_answer(job, is_accepted=job.id in begun)
    for of_key in rivals.values():
        strategies = {job.id: job.wish.on_conflict for job in of_key}
        accepted = [fact for fact in taken if fact.execution_id in begun and fact.execution_id in strategies]
        if plan.has_period:
            times = {request.execution_id: request.at for request in await requests(tocsin)}
            check_period(
                [times[fact.execution_id] for fact in accepted], [times[id_] for id_ in strategies if id_ in skipped]
            )
            continue
        *replaced, last = [fact.execution_id for fact in accepted]
        assert [strategies[fact.execution_id] for fact in accepted[1:]] == ["replace"] * len(replaced)
        assert cancelled & strategies.keys() == set(replaced)
        assert last not in cancelled
        if "replace" not in strategies.values():
            assert not replaced


class Request(NamedTuple):
    """A request that is stored, and when (UTC)."""

    execution_id: str
    at: datetime


async def requests(tocsin: Site) -> list[Request]:
    """Return the stored requests to enqueue a job."""
    stored = await tocsin.facts(subjects.filter_for("enqueue"), Enqueued)
    return [Request(recorded.message.execution_id, recorded.time) for recorded in stored]


def check_answer(job: Sent, *, is_accepted: bool) -> None:
    """Compare the last answer to a client with the log."""
    answer = job.answers[-1]
    if answer.status_code == httpx.codes.CREATED:
        assert is_accepted
    elif answer.status_code == httpx.codes.OK:
        assert answer.json()["deduplicated"]
        assert not is_accepted
    else:
        assert answer.status_code == httpx.codes.CONFLICT, answer.text
        # Only a job that was sent again may have been accepted: the answer to the first try was lost.
        assert not is_accepted or "was enqueued before" in answer.json()["error"]["message"]


def check_period(accepted: Sequence[datetime], skipped: Sequence[datetime]) -> None:
    """Compare times, those of accepted jobs in the order of the decisions."""
    period = timedelta(seconds=PERIOD_S)
    for earlier, later in combinations(accepted, 2):
        assert later - earlier >= period
    for at in skipped:
        assert any(at - other < period for other in accepted)
