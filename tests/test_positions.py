"""References to messages of several partitions, which count their sequences separately."""

import json
from typing import Final

from tests.domain.given import KEY, NOON
from tests.domain.test_task_board import task
from tocsin import subjects
from tocsin.adapters.memory.agents import InMemoryAgentChannel
from tocsin.adapters.memory.stored_stream import MAX_BYTES
from tocsin.domain.agent import agent_key
from tocsin.domain.events import PoisonMessage, Recorded, Started, Trigger
from tocsin.domain.task_board import NO_AGENT, AgentClaim, TaskBoard
from tocsin.domain.task_fetch import Fetch, FetchedClaim
from tocsin.services.audit.requests import Requests
from tocsin.stages.matcher.agents import HeardAgents
from tocsin.stages.matcher.claims import Releases
from tocsin.stages.matcher.fetches import Fetches
from tocsin.stages.matcher.followed_tasks import FollowedTasks
from tocsin.stages.matcher.http_workers import HttpWorkers
from tocsin.stages.matcher.last_heartbeats import LastHeartbeats
from tocsin.stages.matcher.operator_decisions import OperatorDecisions
from tocsin.stages.matcher.task_sender import TaskSender
from tocsin.subjects import TRIGGERS, Bucket
from tocsin.testing import InMemoryEventLog, InMemoryProjections

JOBS: Final = ("here", "there")


def test_refusal_answers_the_trigger_of_its_job_only() -> None:
    requests = Requests()
    handlers = requests.handlers()
    for job in JOBS:
        trigger = Recorded(Trigger(), subjects.trigger(job), 1, NOON, None)
        assert handlers[Trigger](trigger) is None
    letter = PoisonMessage.of("here", TRIGGERS, subjects.trigger("here"), 1, b"", "no such job")

    assert handlers[PoisonMessage](Recorded(letter, subjects.subject_of(letter), 2, NOON, None)) is None

    (debt,) = requests.debts()
    assert (debt.invariant, debt.entity) == ("I2", "job there")


def test_id_of_a_poison_message_names_the_partition() -> None:
    letters = [PoisonMessage.of("j", TRIGGERS, "trigger.j", 7, b"", "", partition=number) for number in (0, 3)]
    assert [(letter.id, letter.partition) for letter in letters] == [
        ("planner-triggers-0-7", 0),
        ("planner-triggers-3-7", 3),
    ]


AGENT: Final = "01890f3e-0000-7000-8000-000000000001"


def claims_of(agent: str, *, text: str = "") -> tuple[TaskBoard, list[AgentClaim]]:
    board = TaskBoard()
    return board, [
        board.confirm(task(1, job=job, execution=f"of-{job}", input={"text": text}), agent, sequence=2) for job in JOBS
    ]


async def test_end_of_each_claim_is_requested() -> None:
    log = InMemoryEventLog()
    board, claims = claims_of(agent_key("w", AGENT))
    releases = Releases(log, board, log.clock, KEY)
    for claim in (*claims, *claims):  # the second time, it is requested already
        await releases.release(claim, "lease_over")
    assert [subjects.job_of(recorded.subject) for recorded in await log.read("report.>")] == list(JOBS)


async def test_each_too_large_task_is_refused() -> None:
    log, channel = InMemoryEventLog(), InMemoryAgentChannel()
    agents = HeardAgents(log.clock.monotonic)
    announced = {"number": 1, "mode": "enabled", "queues": ["default"], "functions": ["f"], "max_concurrent_jobs": 9}
    agents.receive("w", AGENT, json.dumps(announced).encode())
    agents.read()
    board, claims = claims_of(agent_key("w", AGENT), text="x" * MAX_BYTES)
    releases, heartbeats = Releases(log, board, log.clock, KEY), LastHeartbeats(log, log.clock, KEY)
    await TaskSender(channel, agents, releases, heartbeats, log.clock, KEY).send(claims)
    assert [subjects.job_of(recorded.subject) for recorded in await log.read("report.>")] == list(JOBS)


def test_fetch_has_each_of_its_claims() -> None:
    fetches = Fetches(lambda: 0.0)
    claims = [FetchedClaim(scope=subjects.execution(job, "1"), step="main", sequence=2) for job in JOBS]
    for claim in claims:
        fetches.learn(AGENT, claim)
    fetch = Fetch(id=AGENT, gateway=AGENT, queues=("default",), count=9, identity="ops", usual_lease=30.0)
    assert fetches.answer_to(fetch) == tuple(claims)


def test_claim_that_is_undone_answers_no_fetch() -> None:
    """Another claim may get its number, of another worker."""
    log, board, fetches = InMemoryEventLog(), TaskBoard(), Fetches(lambda: 0.0)
    decisions = OperatorDecisions(board, requires_grant=False)
    workers = HttpWorkers(InMemoryProjections(log.clock), log.clock, board, fetches, decisions)
    followed = FollowedTasks(board, fetches, workers, lambda _: True)
    fetch = Fetch(id=AGENT, gateway=AGENT, queues=("default",), count=9, identity="ops", usual_lease=30.0)
    claim = Started(
        job="a", execution_id="1", step="main", attempt=1, delivery=1, worker="w", holder="ops", fetch=AGENT
    )
    scope = subjects.scope_of(claim)

    def learn(number: int) -> None:
        followed.learn(Recorded(claim, subjects.subject_of(claim), number, log.clock.now()))

    learn(5)
    followed.settle(4)
    assert fetches.answer_to(fetch) is None
    followed.settle(0, [scope])
    followed.settle(9)
    assert fetches.answer_to(fetch) is None
    learn(10)
    followed.settle(10)
    assert fetches.answer_to(fetch) == (FetchedClaim(scope=scope, step="main", sequence=10),)


async def test_each_claim_over_http_has_its_holder() -> None:
    log = InMemoryEventLog()
    projections = InMemoryProjections(log.clock)
    board, claims = claims_of(NO_AGENT)
    workers = HttpWorkers(
        projections,
        log.clock,
        board,
        Fetches(log.clock.monotonic),
        OperatorDecisions(board, requires_grant=False),
    )
    for claim in claims:
        workers.note_claim(claim.task.scope, claim.sequence, "ops", claim.task.job)
    await workers.show()
    shown = [json.loads(body) for body in (await projections.entries(Bucket.AGENTS)).values()]
    assert {each["name"]: len(each["held"]) for each in shown} == dict.fromkeys(JOBS, 1)
