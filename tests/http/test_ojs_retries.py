"""Retries of dead letters with an `Idempotency-Key`: one request runs a job once, also if its answer was lost."""

from typing import Any, Final

import pytest

from tests.cli.test_dead_letters import letter
from tests.domain.given import ID, admitted, started
from tests.http.conftest import World
from tocsin.adapters.http.middleware.idempotency import Answer
from tocsin.domain import ids
from tocsin.domain.events import Failed, Replayed
from tocsin.services.operations import event_waiter
from tocsin.subjects import Bucket, Stream

LETTER: Final = letter()
FILTER: Final = {"filter": {"queue": "default"}}
REQUESTS: Final[list[tuple[str, dict[str, Any] | None]]] = [
    (f"/ojs/v1/dead-letter/{ID}/retry", None),
    (f"/ojs/v1/admin/dead-letter/{ID}/retry", {}),
    (f"/ojs/v1/admin/jobs/{ID}/retry", None),
    ("/ojs/v1/jobs/bulk/retry", {"job_ids": [ID]}),
    ("/ojs/v1/jobs/bulk/retry", FILTER),
    ("/ojs/v1/admin/jobs/bulk/retry", {**FILTER, "confirm": True}),
]


class Hospital:
    """A job that failed, whose retries fail too as soon as a planner begins them."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def fail(self, execution_id: str, **fields: Any) -> None:  # noqa: ANN401 - of the beginning
        """Store an execution that failed, and its dead letter."""
        log, begun = self.world.log, admitted().changed(execution_id=execution_id, **fields)
        failed = Failed(
            job=begun.job,
            execution_id=execution_id,
            scheduled_time=begun.scheduled_time,
            trigger=begun.trigger,
            step="main",
            attempt=1,
            error=LETTER.last_error,
        )
        sequence = 0
        for fact in (begun, started().changed(execution_id=execution_id), failed):
            sequence = await log.append(fact, expect=sequence)
        await log.append(letter(execution_id), expect=0)
        after = await self.world.history.offset(Stream.LOG)
        facts = [*await log.read("execution.>", after=after), *await log.read("dead-letter.>", after=after)]
        facts.sort(key=lambda fact: fact.sequence)
        await self.world.history.record(Stream.LOG, facts, after=after, upto=facts[-1].sequence)

    async def fail_retry(self) -> None:
        """Let the newest retry run, and fail."""
        newest = [fact for fact in await self.world.facts("dead-letter.>") if isinstance(fact.message, Replayed)][-1]
        replayed = newest.message
        assert isinstance(replayed, Replayed)
        again = ids.replay_id(replayed.job, replayed.id, replayed.number, newest.time)
        await self.fail(again, trigger="replay", replay_of=replayed.id)

    async def lose_answers(self) -> None:
        """Forget the answers, as if the server had died before it stored them."""
        for key, body in (await self.world.projections.entries(Bucket.ANSWERS)).items():
            claim = Answer.model_validate_json(body)
            lost = Answer(fingerprint=claim.fingerprint, claimed_at=claim.claimed_at, is_left_out=True)
            await self.world.projections.put(Bucket.ANSWERS, key, lost.model_dump_json().encode())

    async def retried(self) -> list[str]:
        """Return the dead letters that requests ran again, oldest first."""
        facts = await self.world.facts("dead-letter.>")
        return [fact.message.id for fact in facts if isinstance(fact.message, Replayed)]


@pytest.fixture
async def hospital(world: World, monkeypatch: pytest.MonkeyPatch) -> Hospital:
    monkeypatch.setattr(event_waiter, "POLL_PAUSES_S", (0.0,))  # no planner runs here
    monkeypatch.setattr(event_waiter, "FALLBACK_PAUSES_S", ())
    await world.given(name=LETTER.job, schedule=None)
    hospital = Hospital(world)
    await hospital.fail(ID)
    return hospital


@pytest.mark.parametrize(("path", "body"), REQUESTS)
async def test_repeated_retry_runs_the_job_once(hospital: Hospital, path: str, body: dict[str, Any] | None) -> None:
    world = hospital.world
    await world.ask("POST", path, body, Idempotency_Key="k")
    assert await hospital.retried() == [ID]
    await hospital.fail_retry()
    await hospital.lose_answers()
    answer = await world.ask("POST", path, body, Idempotency_Key="k")
    assert answer.status_code == 200, answer.text
    assert await hospital.retried() == [ID]
    assert (await world.ask("POST", path, body, Idempotency_Key="k")).json() == answer.json()
    await world.ask("POST", path, body, Idempotency_Key="another")
    assert len(await hospital.retried()) == 2


@pytest.mark.parametrize(("path", "body"), REQUESTS)
async def test_retry_that_no_stage_started_is_repeated(
    hospital: Hospital, path: str, body: dict[str, Any] | None
) -> None:
    """The retry is stored, and the same request succeeds once a stage starts it."""
    world = hospital.world
    first = await world.ask("POST", path, body, Idempotency_Key="k")
    assert "no stage has started it" in first.text
    await hospital.fail_retry()
    again = await world.ask("POST", path, body, Idempotency_Key="k")
    assert again.status_code == 200, again.text
    assert "no stage has started it" not in again.text
    assert await hospital.retried() == [ID]
    assert (await world.ask("POST", path, body, Idempotency_Key="k")).json() == again.json()


async def test_repeated_retry_is_found_before_later_retries(hospital: Hospital) -> None:
    world, path = hospital.world, f"/ojs/v1/dead-letter/{ID}/retry"
    for key in ("a", "b"):
        await world.ask("POST", path, Idempotency_Key=key)
        await hospital.fail_retry()
    await hospital.lose_answers()
    for key in ("b", "a"):
        assert (await world.ask("POST", path, Idempotency_Key=key)).status_code == 200
    assert len(await hospital.retried()) == 2
