"""Executions that ended, and the dead letters that they left."""

from typing import Any

import pytest
from pydantic import JsonValue

from tests.cli.test_dead_letters import letter
from tests.domain.given import ID, admitted, plan, started
from tests.http.conftest import World
from tocsin import subjects
from tocsin.adapters.http.ojs import dead_letters
from tocsin.domain import ids
from tocsin.domain.events import Completed, Failed, Replayed, Resolved, Skipped
from tocsin.ports import DeadLetterRow
from tocsin.ports.queries import DeadLetterQuery, Page, Place
from tocsin.services.operations import event_waiter
from tocsin.subjects import Stream

LETTER = letter()


@pytest.fixture
async def old(world: World) -> None:
    """A failed execution with an unresolved dead letter."""
    await world.given(name=LETTER.job, schedule=None)
    begun = admitted()
    failed = Failed(
        job=begun.job,
        execution_id=ID,
        scheduled_time=begun.scheduled_time,
        trigger=begun.trigger,
        step="main",
        attempt=1,
        error=LETTER.last_error,
    )
    sequence = 0
    for fact in (begun, started(), failed):
        sequence = await world.log.append(fact, expect=sequence)
    await world.log.append(LETTER, expect=0)


async def test_a_dead_letter_that_was_settled_is_shown(world: World, old: None) -> None:
    _ = old
    [kept] = await world.facts("dead-letter.>")
    await world.log.append(Resolved(job=LETTER.job, id=ID, reason="by hand"), expect=kept.sequence)
    path = f"/v1/dead-letters/{ID}"
    before = [(await world.ask("GET", one)).json() for one in (path, f"{path}/events")]
    assert before[0]["resolution"]["reason"] == "by hand"
    settled = await world.ask("PATCH", path, {"resolved": True})
    assert (settled.status_code, settled.json()["changed"]) == (200, False)


async def test_ended_ojs_job_is_shown_and_listed_dead(world: World, old: None) -> None:
    _ = old
    facts = await world.log.read("dead-letter.>")
    await world.history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)
    paths = (f"/ojs/v1/jobs/{ID}", "/ojs/v1/dead-letter")
    before = [(await world.ask("GET", path)).json() for path in paths]
    assert before[0]["job"]["state"] == "discarded"
    assert [job["id"] for job in before[1]["jobs"]] == [ID]
    late = await world.ask("DELETE", f"/ojs/v1/jobs/{ID}")
    assert (late.status_code, late.json()["error"]["message"]) == (
        409,
        f"job {ID} cannot be cancelled: it is discarded",
    )


async def test_result_is_shown(world: World) -> None:
    """Ojs-results §8.1."""
    begun = admitted()
    result: JsonValue = {"rows": [3, None], "text": "é"}
    done = Completed(
        job=begun.job,
        execution_id=ID,
        scheduled_time=begun.scheduled_time,
        trigger=begun.trigger,
        step="main",
        attempt=1,
        result=result,
    )
    sequence = 0
    for fact in (begun, started(), done):
        sequence = await world.log.append(fact, expect=sequence)
    job = (await world.ask("GET", f"/ojs/v1/jobs/{ID}")).json()["job"]
    assert (job["state"], job["result"]) == ("completed", result)
    assert (job["result_stored_at"], job["result_expires_at"]) == (job["completed_at"], None)


async def test_ended_ojs_job_is_not_run_again(world: World, old: None) -> None:
    _ = old
    wish = {"id": ID, "type": "mail.send", "args": []}
    text = f"a job with the id {ID!r} was enqueued before"
    batch = {"jobs": [{**wish, "id": None}, wish]}
    for path, body, job in (("/ojs/v1/jobs", wish, ""), ("/ojs/v1/jobs/batch", batch, "job 1 of the batch: ")):
        answer = await world.ask("POST", path, body)
        assert (answer.status_code, answer.json()["error"]["message"]) == (409, job + text)
    assert await world.facts("enqueue.>") == []


async def test_replay_that_failed_too_stands_for_its_job(
    world: World, old: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is listed once, by the id under which it was first listed."""
    _ = old
    monkeypatch.setattr(event_waiter, "POLL_PAUSES_S", ())  # no planner runs here
    monkeypatch.setattr(event_waiter, "FALLBACK_PAUSES_S", ())
    [kept] = await world.facts("dead-letter.>")
    await world.log.append(Replayed(job=LETTER.job, id=ID, number=1), expect=kept.sequence)
    [_, replayed] = await world.facts("dead-letter.>")
    again = {"execution_id": ids.replay_id(LETTER.job, ID, 1, replayed.time)}
    failed = (await world.facts(f"execution.{LETTER.job}.{ID}.failed"))[0].message
    begun = admitted().changed(**again, trigger="replay", replay_of=ID)
    first = await world.log.append(begun, expect=0)
    await world.log.append(failed.changed(**again), expect=first)
    await world.log.append(letter(again["execution_id"]), expect=0)
    facts = [*await world.log.read("execution.>"), *await world.log.read("dead-letter.>")]
    facts.sort(key=lambda fact: fact.sequence)
    await world.history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)
    listed = (await world.ask("GET", "/ojs/v1/dead-letter")).json()["jobs"]
    shown = (await world.ask("GET", f"/ojs/v1/jobs/{ID}")).json()["job"]
    assert ([job["id"] for job in listed], shown["state"]) == ([ID], "discarded")
    [item] = (await world.ask("GET", "/ojs/v1/admin/dead-letter")).json()["items"]
    assert item["id"] == ID
    body = {"filter": {"queue": "default"}}
    [item] = (await world.ask("POST", "/ojs/v1/jobs/bulk/retry", body)).json()["items"]
    assert item["job_id"] == ID
    requests = [fact.message for fact in await world.facts("dead-letter.>") if isinstance(fact.message, Replayed)]
    assert [fact.id for fact in requests] == [ID, again["execution_id"]]


async def test_job_that_ran_again_is_listed_once(world: World, old: None) -> None:
    """By its newest execution, and not as discarded too."""
    _ = old
    [kept] = await world.facts("dead-letter.>")
    await world.log.append(Replayed(job=LETTER.job, id=ID, number=1), expect=kept.sequence)
    [_, replayed] = await world.facts("dead-letter.>")
    again = {"execution_id": ids.replay_id(LETTER.job, ID, 1, replayed.time), "trigger": "replay", "replay_of": ID}
    await world.log.append(admitted().changed(**again), expect=0)
    facts = await world.log.read("execution.>")
    await world.history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)

    async def listed(query: str) -> list[tuple[str, str]]:
        answer = await world.ask("GET", f"/ojs/v1/admin/jobs?{query}")
        return [(item["id"], item["state"]) for item in answer.json()["items"]]

    assert [await listed(query) for query in ("", "state=discarded", "state=available")] == [
        [(ID, "available")],
        [],
        [(ID, "available")],
    ]


async def record_all(world: World) -> None:
    facts = [*await world.log.read("execution.>"), *await world.log.read("dead-letter.>")]
    facts.sort(key=lambda fact: fact.sequence)
    await world.history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)


async def test_job_whose_replay_was_skipped_is_listed(world: World, old: None) -> None:
    """A replay beyond a daily quota of the namespace did not run."""
    _ = old
    [kept] = await world.facts("dead-letter.>")
    await world.log.append(Replayed(job=LETTER.job, id=ID, number=1), expect=kept.sequence)
    [_, replayed] = await world.facts("dead-letter.>")
    again = {"execution_id": ids.replay_id(LETTER.job, ID, 1, replayed.time), "trigger": "replay", "replay_of": ID}
    await world.log.append(Skipped.of(admitted().changed(**again), "namespace_quota"), expect=0)
    await record_all(world)
    listed = [
        (await world.ask("GET", path)).json()
        for path in ("/ojs/v1/admin/jobs", "/ojs/v1/admin/dead-letter", "/ojs/v1/dead-letter")
    ]
    ids_of = [[job["id"] for job in answer.get("items", answer.get("jobs"))] for answer in listed]
    shown = (await world.ask("GET", f"/ojs/v1/jobs/{ID}")).json()
    assert (ids_of, shown["job"]["state"]) == ([[ID], [ID], [ID]], "discarded")


@pytest.mark.parametrize(
    ("path", "is_dead", "reads"), [("jobs", False, 0), ("jobs", True, 1), ("dead-letter", True, 1)]
)
async def test_list_reads_a_dead_letter_once(
    world: World, old: None, monkeypatch: pytest.MonkeyPatch, path: str, *, is_dead: bool, reads: int
) -> None:
    """A job that leaves none has none to read."""
    id_, scopes, load = ID, list[str](), world.log.load
    _ = old
    if not is_dead:
        id_ = ID[:-1] + "f"
        begun = admitted(plan().changed(dead_letter=False)).changed(execution_id=id_)
        [failed] = await world.facts(f"execution.{LETTER.job}.{ID}.failed")
        first = await world.log.append(begun, expect=0)
        await world.log.append(failed.message.changed(execution_id=id_), expect=first)
    await record_all(world)

    async def loaded(scope: str) -> Any:  # noqa: ANN401 - as of the method
        scopes.append(scope)
        return await load(scope)

    monkeypatch.setattr(world.log, "load", loaded)
    items = (await world.ask("GET", f"/ojs/v1/admin/{path}")).json()["items"]
    assert id_ in [item["id"] for item in items]
    assert scopes.count(subjects.dead_letter(LETTER.job, id_)) == reads


async def test_ojs_dead_letters_count_and_filter_before_paging(world: World) -> None:
    await world.given(name=LETTER.job, schedule=None)
    steps = plan().steps
    for number, queue in enumerate(("a", "b", "a", "a"), start=1):
        execution_id = f"{ID[:-1]}{number}"
        queued = plan().changed(steps=tuple(step.changed(queue=queue) for step in steps))
        await world.log.append(admitted(queued).changed(execution_id=execution_id), expect=0)
        await world.log.append(letter(execution_id), expect=0)
    facts = await world.log.read("dead-letter.>")
    await world.history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)

    async def listed(query: str) -> tuple[int, int, bool]:
        answer = (await world.ask("GET", f"/ojs/v1/dead-letter?{query}")).json()
        return len(answer["jobs"]), answer["pagination"]["total"], answer["pagination"]["has_more"]

    assert await listed("limit=1") == (1, 4, True)
    assert await listed("limit=2&offset=3") == (1, 4, False)
    assert await listed("limit=2&queue=a") == (2, 3, True)
    assert await listed("limit=1&queue=b") == (1, 1, False)


async def test_ojs_dead_letters_continue_after_a_cursor(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "MAX_READ", 2)
    await world.given(name=LETTER.job, schedule=None)
    steps = plan().steps
    for number, queue in enumerate("aababba", start=1):
        execution_id = f"{ID[:-1]}{number}"
        queued = plan().changed(steps=tuple(step.changed(queue=queue) for step in steps))
        await world.log.append(admitted(queued).changed(execution_id=execution_id), expect=0)
        await world.log.append(letter(execution_id), expect=0)
    facts = await world.log.read("dead-letter.>")
    await world.history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)

    async def listed(query: str) -> list[str]:
        numbers, cursor = list[str](), ""
        for _ in range(10):
            answer = (await world.ask("GET", f"/ojs/v1/dead-letter?{query}{cursor}")).json()
            numbers += [job["id"][-1] for job in answer["jobs"]]
            following = answer["pagination"]["next_cursor"]
            assert answer["pagination"]["has_more"] == (following is not None)
            if following is None:
                return numbers
            cursor = f"&cursor={following}"
        raise AssertionError(numbers)

    every = await listed("limit=100")
    assert sorted(every) == list("1234567")
    assert [await listed(f"limit={limit}") for limit in (1, 2, 3, 7)] == [every] * 4
    of_a = [number for number in every if number in "1247"]
    assert [await listed(f"queue=a&limit={limit}") for limit in (1, 2, 100)] == [of_a] * 3
    monkeypatch.setattr(dead_letters, "MAX_COUNTED", 3)
    assert await listed("limit=100") == every


async def test_ojs_dead_letters_with_one_id_come_once(world: World) -> None:
    """Their jobs differ, and their last attempts are of the same time."""
    jobs = [LETTER.job, "a-job", "b-job"]
    for job in jobs:
        await world.given(name=job, schedule=None)
        queued = plan().changed(steps=tuple(s.changed(queue=job) for s in plan().steps))
        await world.log.append(admitted(queued).changed(job=job), expect=0)
        await world.log.append(letter(ID).changed(job=job), expect=0)
    facts = await world.log.read("dead-letter.>")
    await world.history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)
    queues, cursor = list[str](), ""
    for number, _ in enumerate(jobs, 1):
        answer = (await world.ask("GET", f"/ojs/v1/dead-letter?limit=1{cursor}")).json()
        queues += [job["queue"] for job in answer["jobs"]]
        assert answer["pagination"]["has_more"] == (number < len(jobs))
        cursor = f"&cursor={answer['pagination']['next_cursor']}"
    assert sorted(queues) == sorted(jobs)


async def test_ojs_dead_letters_search_a_limited_number(
    world: World, old: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ = old
    row = DeadLetterRow(ID, LETTER.job, ID, 1, None, {}, LETTER.first_attempt, LETTER.last_attempt, resolved=False)
    read = list[int]()

    async def endless(query: DeadLetterQuery) -> Page[DeadLetterRow]:
        read.append(query.limit)
        place = Place("newest", sum(read), ID)
        return Page([row] * query.limit, place.cursor, [place] * query.limit)

    monkeypatch.setattr(world.history, "dead_letters", endless)
    for query, most in (("limit=1", dead_letters.MAX_COUNTED), ("queue=none", dead_letters.MAX_READ)):
        read.clear()
        pages = (await world.ask("GET", f"/ojs/v1/dead-letter?{query}")).json()["pagination"]
        assert sum(read) == most
        assert pages["has_more"]
        assert pages["next_cursor"]
