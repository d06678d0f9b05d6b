"""`/v1/dead-letters/groups`: groups of dead letters, and what is listed and replayed of a group."""

from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.domain.given import NOON
from tests.http.conftest import World
from tocsin import subjects
from tocsin.adapters.http.api.dead_letter_groups import groups_of
from tocsin.domain.access import Role
from tocsin.domain.events import DeadLettered, Failure
from tocsin.ports.summaries import LetterGroup
from tocsin.subjects import Stream

HIDDEN = "secret"
LETTERS = (
    ("open", "no rows for 1"),
    ("open", "no rows for 22"),
    ("open", "disk full"),
    (HIDDEN, "no rows for 3"),
    ("gone", "no rows for 4"),
)
PATTERN = "E: no rows for <n>"


def _id(number: int) -> str:
    return f"0193a5b0-0000-7000-8000-{number:012}"


@pytest.fixture
async def kept(world: World) -> World:
    """Dead letters of a visible, a hidden and a deleted hidden job, a minute apart."""
    await world.given(name="open")
    for name in (HIDDEN, "gone"):
        await world.given(name=name, viewers=("user:ada",))
    for number, (job, message) in enumerate(LETTERS):
        world.clock.advance(60)
        definition = await world.log.last(subjects.definition(job))
        assert definition is not None
        now = world.clock.now()
        letter = DeadLettered(
            job=job,
            id=_id(number),
            execution_id=_id(number),
            scheduled_time=now,
            trigger="cron",
            attempts=(),
            last_error=Failure(type="E", message=message),
            first_attempt=now,
            last_attempt=now,
            definition=definition.sequence,
        )
        await world.log.append(letter, expect=0)
    await world.registry.delete("gone")
    facts = await world.facts("dead-letter.>")
    await world.history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)
    return world


async def _ask(world: World, method: str, path: str, role: Role, body: object = None) -> Any:  # noqa: ANN401 - JSON
    token = await world.token("eve", role)
    answer = await world.ask(method, path, body, Authorization=f"Bearer {token}")
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    ("role", "jobs"), [(Role.VIEWER, ["open", "open"]), (Role.ADMIN, ["open", "gone", HIDDEN, "open"])]
)
async def test_groups_are_those_of_visible_jobs(kept: World, role: Role, jobs: list[str]) -> None:
    answer = await _ask(kept, "GET", "/v1/dead-letters/groups", role)
    assert [group["job"] for group in answer["groups"]] == jobs
    assert answer["complete"]
    largest = answer["groups"][0]
    assert (largest["pattern"], largest["count"], largest["example"]) == (PATTERN, 2, _id(1))
    assert largest["first"] < largest["last"]


async def test_groups_can_be_filtered(kept: World) -> None:
    answer = await _ask(kept, "GET", f"/v1/dead-letters/groups?job={HIDDEN}", Role.ADMIN)
    assert [group["job"] for group in answer["groups"]] == [HIDDEN]
    until = quote((kept.clock.now() - timedelta(minutes=3)).isoformat())
    answer = await _ask(kept, "GET", f"/v1/dead-letters/groups?until={until}", Role.ADMIN)
    assert [group["count"] for group in answer["groups"]] == [1]


async def test_group_can_be_listed(kept: World) -> None:
    answer = await _ask(kept, "GET", f"/v1/dead-letters?job=open&pattern={quote(PATTERN)}", Role.VIEWER)
    assert [letter["id"] for letter in answer["dead_letters"]] == [_id(1), _id(0)]


async def test_replay_of_a_group_is_previewed(kept: World) -> None:
    before = await kept.facts("dead-letter.>")
    body = {"pattern": PATTERN, "dry_run": True}
    answer = await _ask(kept, "POST", "/v1/dead-letters/replay-all", Role.OPERATOR, body)
    assert answer["matching"] == [{"id": _id(0), "job": "open"}, {"id": _id(1), "job": "open"}]
    assert (answer["replayed"], answer["refused"], answer["complete"]) == ([], [], True)
    first = await _ask(kept, "POST", "/v1/dead-letters/replay-all", Role.OPERATOR, {**body, "limit": 1})
    assert ([letter["id"] for letter in first["matching"]], first["complete"]) == ([_id(0)], False)
    assert await kept.facts("dead-letter.>") == before


async def test_only_the_group_is_replayed(kept: World) -> None:
    body = {"pattern": PATTERN, "job": "open"}
    answer = await _ask(kept, "POST", "/v1/dead-letters/replay-all", Role.OPERATOR, body)
    assert [replay["id"] for replay in answer["replayed"]] == [_id(0), _id(1)]


parts = st.builds(
    LetterGroup,
    job_name=st.sampled_from("ab"),
    pattern=st.sampled_from(["x <n>", "y", ""]),
    count=st.integers(1, 9),
    first=st.just(NOON),
    last=st.integers(0, 9).map(lambda minutes: NOON + timedelta(minutes=minutes)),
    example=st.text(),
)


@given(st.lists(parts, max_size=20))
def test_each_part_is_in_one_group(found: list[LetterGroup]) -> None:
    groups = groups_of(found)
    assert sum(group.count for group in groups) == sum(part.count for part in found)
    assert len({(group.job, group.pattern) for group in groups}) == len(groups)
    for group in groups:
        newest = max((part for part in found if (part.job_name, part.pattern) == (group.job, group.pattern)), key=_age)
        assert (group.last, group.example) == _age(newest)
    assert [group.count for group in groups] == sorted((group.count for group in groups), reverse=True)


def _age(part: LetterGroup) -> tuple[object, ...]:
    return part.last, part.example
