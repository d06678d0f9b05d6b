"""`/v1/dead-letters/replay-all`: every dead letter that matches is replayed once, over several requests."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.http.conftest import World
from tocsin import subjects
from tocsin.adapters.http.api import dead_letter_groups
from tocsin.adapters.http.middleware.idempotency import Answer
from tocsin.domain.access import Role
from tocsin.domain.events import DeadLettered, Failed, Failure, Replayed
from tocsin.subjects import Bucket, Stream

JOB = "job"
PATH = "/v1/dead-letters/replay-all"


def _id(number: int) -> str:
    return f"0193a5b0-0000-7000-8000-{number:012}"


async def add_letters(world: World, ids: Sequence[str], **changes: object) -> None:
    """Add dead letters to the log and the history, a second apart."""
    definition = await world.log.last(subjects.definition(JOB))
    assert definition is not None
    for each in ids:
        world.clock.advance(1)
        now = world.clock.now()
        letter = DeadLettered(
            job=JOB,
            id=each,
            execution_id=each,
            scheduled_time=now,
            trigger="cron",
            attempts=(),
            last_error=Failure(type="E", message="no route"),
            first_attempt=now,
            last_attempt=now,
            definition=definition.sequence,
        )
        await world.log.append(letter.changed(**changes), expect=0)
    await record(world)


async def record(world: World) -> None:
    """Let the history read the log."""
    after = await world.history.offset(Stream.LOG)
    facts = [fact for fact in await world.facts("dead-letter.>") if fact.sequence > after]
    await world.history.record(Stream.LOG, facts, after=after, upto=facts[-1].sequence)


async def fail(world: World, replayed: Sequence[dict[str, Any]]) -> None:
    """Let the executions of replays fail, which makes dead letters of them."""
    ids = [replay["execution_id"] for replay in replayed]
    for each in ids:
        end = Failed(job=JOB, execution_id=each, scheduled_time=world.clock.now(), trigger="replay")
        await world.log.append(end, expect=0)
    await add_letters(world, ids)


async def replay_all(world: World, *, key: str | None = None, **body: object) -> Any:  # noqa: ANN401 - JSON
    headers = {} if key is None else {"Idempotency_Key": key}
    answer = await world.ask("POST", PATH, body, **headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def replays(world: World) -> list[str]:
    """Return the dead letter of each replay in the log."""
    return [fact.message.id for fact in await world.facts("dead-letter.>") if isinstance(fact.message, Replayed)]


def ids_of(letters: Sequence[dict[str, Any]]) -> list[str]:
    return [letter["id"] for letter in letters]


async def test_letters_that_fail_again_hide_no_others(world: World) -> None:
    await world.given()
    letters = [_id(number) for number in range(130)]
    await add_letters(world, letters)
    first = await replay_all(world, job=JOB)
    assert (ids_of(first["replayed"]), first["complete"]) == (letters[:100], False)
    await fail(world, first["replayed"])
    rest = await replay_all(world, job=JOB, cursor=first["next"])
    assert (ids_of(rest["replayed"]), rest["refused"]) == (letters[100:], [])
    assert (rest["complete"], rest["next"]) == (True, None)
    assert await replays(world) == letters


async def test_cursor_continues_a_preview_and_after_refusals(world: World) -> None:
    await world.given()
    letters = [_id(number) for number in range(5)]
    await add_letters(world, letters)
    await replay_all(world, limit=2)
    cursor, previewed, replayed, refused = None, [], [], []
    for number in range(3):
        answer = await replay_all(world, limit=2, cursor=cursor, dry_run=True)
        previewed += ids_of(answer["matching"])
        answer = await replay_all(world, limit=2, cursor=cursor)
        replayed += ids_of(answer["replayed"])
        refused += ids_of(answer["refused"])
        cursor = answer["next"]
        assert answer["complete"] is (cursor is None) is (number == 2)
    assert (previewed, replayed, refused) == (letters, letters[2:], letters[:2])


@pytest.mark.parametrize("limit", [2, 100])
async def test_slow_replays_end_a_request_early(world: World, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(dead_letter_groups, "MAX_REPLAY_SECONDS", 0.0)
    await world.given()
    letters = [_id(number) for number in range(3)]
    await add_letters(world, letters)
    cursor, answers = None, []
    for number in range(3):
        answer = await replay_all(world, limit=limit, cursor=cursor)
        answers.append(ids_of(answer["replayed"]))
        cursor = answer["next"]
        assert answer["complete"] is (cursor is None) is (number == 2)
        await fail(world, answer["replayed"])  # no answer may lead to these
    assert answers == [[letter] for letter in letters]


async def test_preview_counts_all_that_match(world: World) -> None:
    await world.given()
    letters = [_id(number) for number in range(12)]
    await add_letters(world, letters[:7])
    await add_letters(world, letters[7:], last_error=Failure(type="E", message="no disk"))
    await replay_all(world, job=JOB, limit=1)
    preview = await replay_all(world, limit=2, dry_run=True)
    assert (len(preview["matching"]), preview["total"]) == (2, 12)  # a replay may be refused; its dead letter matches
    assert (await replay_all(world, limit=2, dry_run=True, error="disk"))["total"] == 5
    assert (await replay_all(world, limit=20, dry_run=True, error="disk"))["total"] == 5
    assert (await replay_all(world, limit=2, dry_run=True, cursor=preview["next"]))["total"] is None
    assert (await replay_all(world, limit=2))["total"] is None


async def test_preview_counts_what_the_caller_may_replay(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.given()
    await add_letters(world, [_id(number) for number in range(3)])
    token = await world.token("eve", Role.AUTHOR)
    own = {"name": "own", "function": "f"}
    assert (await world.ask("POST", "/v1/jobs", own, Authorization=f"Bearer {token}")).status_code == 201
    [defined] = await world.facts(subjects.definition("own"))
    await add_letters(world, [_id(number) for number in range(3, 5)], job="own", definition=defined.sequence)

    async def total(token: str) -> object:
        answer = await world.ask("POST", PATH, {"limit": 1, "dry_run": True}, Authorization=f"Bearer {token}")
        return answer.json()["total"]

    admin = await world.token("ada", Role.ADMIN)
    assert (await total(token), await total(admin)) == (2, 5)
    monkeypatch.setattr(dead_letter_groups, "MAX_PARTS", 1)
    assert (await total(token), await total(admin)) == (None, None)


async def test_letters_with_one_id_are_replayed_once(world: World) -> None:
    await world.given()
    await world.given(name="other")
    await add_letters(world, [_id(1)])
    [stored] = await world.facts("dead-letter.>")
    await world.log.append(stored.message.changed(job="other"), expect=0)
    await record(world)
    await add_letters(world, [_id(2)])
    cursor, replayed = None, []
    for _ in range(3):
        answer = await replay_all(world, limit=1, cursor=cursor)
        replayed += [(letter["id"], letter["job"]) for letter in answer["replayed"]]
        cursor = answer["next"]
    assert cursor is None
    assert replayed == [(_id(1), JOB), (_id(1), "other"), (_id(2), JOB)]


@pytest.mark.parametrize("is_answer_lost", [False, True])
async def test_repeated_key_replays_once(world: World, *, is_answer_lost: bool) -> None:
    await world.given()
    letters = [_id(number) for number in range(3)]
    await add_letters(world, letters)
    first = await replay_all(world, limit=2, key="k")
    if is_answer_lost:
        [(key, value)] = (await world.projections.entries(Bucket.ANSWERS)).items()
        claim = Answer.model_validate_json(value).model_copy(update={"status": None})
        await world.projections.put(Bucket.ANSWERS, key, claim.model_dump_json().encode())
        world.clock.advance(3600)
    assert await replay_all(world, limit=2, key="k") == first
    assert await replays(world) == letters[:2]


async def test_letter_with_an_unfit_input_stops_no_others(world: World) -> None:
    await world.given(input_schema={"type": "object", "properties": {"a": {"type": "integer"}}})
    await add_letters(world, [_id(1)], input={"a": "x"}, plan_input={"a": "x"})
    await add_letters(world, [_id(2)])
    answer = await replay_all(world)
    assert (ids_of(answer["refused"]), ids_of(answer["replayed"])) == ([_id(1)], [_id(2)])
    assert "input.a" in answer["refused"][0]["reason"]


@pytest.mark.parametrize("cursor", ["", "x", "x.y", ".", "7.7"])
async def test_invalid_cursor_is_refused(world: World, cursor: str) -> None:
    answer = await world.ask("POST", PATH, {"cursor": cursor})
    assert answer.status_code == 422, answer.text
    [error] = answer.json()["errors"]
    assert (error["field"], error["value"]) == ("cursor", f'"{cursor}"')


@pytest.mark.parametrize(("limit", "value"), [("MAX_SEARCHED", 6), ("MAX_SECONDS", 0.0)])
async def test_search_among_others_letters_has_an_end(
    world: World, monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    monkeypatch.setattr(dead_letter_groups, limit, value)
    await world.given()
    theirs = [_id(number) for number in range(10)]
    await add_letters(world, theirs)
    token = await world.token("eve", Role.AUTHOR)
    own = {"name": "own", "function": "f"}
    assert (await world.ask("POST", "/v1/jobs", own, Authorization=f"Bearer {token}")).status_code == 201
    [defined] = await world.facts(subjects.definition("own"))
    await add_letters(world, [_id(10)], job="own", definition=defined.sequence)

    cursor, tried, answers = None, [], 0
    while answers == 0 or cursor is not None:
        body = {"limit": 2, "cursor": cursor}
        answer = (await world.ask("POST", PATH, body, Authorization=f"Bearer {token}")).json()
        tried += ids_of(answer["replayed"])
        cursor, answers = answer["next"], answers + 1
        assert answer["complete"] is (cursor is None)
    assert tried == await replays(world) == [_id(10)]
    assert answers == (2 if limit == "MAX_SEARCHED" else 6)
