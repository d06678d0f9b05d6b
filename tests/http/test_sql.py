"""`/v1/sql`: statements, with the rights of the operations that they stand for."""

from typing import Any

import httpx
import pytest

from tests.domain.given import admitted
from tests.http.conftest import World
from tocsin.domain.access import Role
from tocsin.domain.events import Cancelled, Defined, Deleted, Paused, Resumed, Trigger

RUN = "11111111-1111-7111-8111-111111111111"
CREATE = "CREATE JOB nightly SCHEDULE = '0 3 * * *' FUNCTION 'report'"


async def sql(world: World, text: str, **headers: str) -> list[dict[str, Any]]:
    answer = await world.ask("POST", "/v1/sql", {"sql": text, "reason": "because"}, **headers)
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = answer.json()["results"]
    return results


async def refused(world: World, text: str, **headers: str) -> tuple[int, str, str]:
    answer = await world.ask("POST", "/v1/sql", {"sql": text}, **headers)
    problem = answer.json()
    return answer.status_code, problem["type"].rpartition(":")[2], problem["detail"]


async def running(world: World, job: str = "job") -> None:
    await world.log.append(admitted().model_copy(update={"job": job, "execution_id": RUN}), expect=0)


async def test_statements_make_the_events_of_operations(world: World) -> None:
    results = await sql(
        world,
        f"""
        {CREATE};
        ALTER JOB nightly SET TIMEOUT = 5 MINUTES, STATE = PAUSED;
        ALTER JOB nightly SET STATE = ENABLED;
        EXECUTE JOB nightly;
        DROP JOB nightly KEEP HISTORY;
        """,
    )
    assert [result["statement"] for result in results] == [
        *("CREATE JOB", "ALTER JOB", "ALTER JOB", "EXECUTE JOB", "DROP JOB")
    ]
    assert all(result["changed"] for result in results)
    messages = [fact.message for fact in await world.facts("ledger.>")]
    assert [type(message) for message in messages] == [Defined, Defined, Paused, Resumed, Deleted]
    [trigger] = [fact.message for fact in await world.facts("trigger.>")]
    assert isinstance(trigger, Trigger)
    for message in (*messages, trigger):
        assert (getattr(message, "reason", None), getattr(message, "by", None)) != (None, None)
    assert isinstance(messages[1], Defined)
    assert messages[1].definition.timeout == 300
    assert results[3]["execution_id"]


async def test_a_run_is_cancelled(world: World) -> None:
    await world.given(name="job")
    await running(world)
    [result] = await sql(world, f"CANCEL JOB RUN {RUN}")
    assert (result["job"], result["execution_id"], result["changed"]) == ("job", RUN, True)
    [cancelled] = [f.message for f in await world.facts("execution.>") if isinstance(f.message, Cancelled)]
    assert cancelled.reason == "because"
    assert (await sql(world, f"CANCEL JOB RUN '{RUN}'"))[0]["changed"] is False


async def test_create_again_changes_nothing(world: World) -> None:
    await sql(world, CREATE)
    assert [result["changed"] for result in await sql(world, CREATE)] == [False]
    status, kind, detail = await refused(world, CREATE.replace("report", "other"))
    assert (status, kind) == (409, "not-possible")
    assert "ALTER JOB" in detail


async def test_jobs_are_shown_and_written_as_sql(world: World) -> None:
    await sql(world, CREATE)
    await world.given(name="graph", function=None, dag=[{"name": "a", "function": "f"}])
    [jobs, created] = await sql(world, "SHOW JOBS; SHOW CREATE JOB nightly")
    assert [dict(zip(jobs["columns"], row, strict=True))["job_name"] for row in jobs["rows"]] == ["graph", "nightly"]
    [[name, statement]] = created["rows"]
    assert name == "nightly"
    assert [result["changed"] for result in await sql(world, statement)] == [False]
    status, kind, _ = await refused(world, "SHOW CREATE JOB graph")
    assert (status, kind) == (422, "invalid-definition")


@pytest.mark.parametrize(
    ("text", "status", "kind", "hint"),
    [
        ("CREATE JOB", 422, "invalid-statement", "line 1, column 11"),
        ("CREATE JOB a\nCLASS = LEADER_ONLY FUNCTION 'f'", 422, "invalid-definition", "line 2, column 1"),
        ("CREATE JOB a AS 'SELECT 1'", 422, "invalid-definition", "line 1, column 14"),
        ("DROP JOB missing", 404, "not-found", "missing"),
        ("ALTER JOB missing SET TIMEOUT = 5", 404, "not-found", "missing"),
        ("ALTER JOB missing SET STATE = PAUSED", 404, "not-found", "missing"),
        ("EXECUTE JOB missing", 404, "not-found", "missing"),
        (f"CANCEL JOB RUN {RUN}", 404, "not-found", RUN),
        ("CANCEL JOB RUN 'x y'", 422, "invalid-request", ""),
        ("SHOW CREATE JOB missing", 404, "not-found", "missing"),
        (";".join(["SHOW JOBS"] * 101), 422, "invalid-statement", "101"),
        ("x" * 65_537, 422, "invalid-request", "sql"),
    ],
)
async def test_an_error_names_its_cause(world: World, text: str, status: int, kind: str, hint: str) -> None:
    answer = await refused(world, text)
    assert answer[:2] == (status, kind)
    assert hint in answer[2]


async def test_statements_before_a_failure_have_taken_effect(world: World) -> None:
    status, kind, detail = await refused(world, f"{CREATE};\nDROP JOB missing; DROP JOB nightly")
    assert (status, kind) == (404, "not-found")
    assert "statement 2 of 3, at line 2, column 1" in detail
    assert [job.name for job in await world.registry.jobs()] == ["nightly"]


async def test_an_unreadable_statement_stops_the_others(world: World) -> None:
    assert (await refused(world, f"{CREATE}; DRP JOB nightly"))[1] == "invalid-statement"
    assert await world.facts(">") == []


async def test_a_repeated_request_triggers_once(world: World) -> None:
    await world.given(name="job")
    both = "EXECUTE JOB job; EXECUTE JOB job"
    first = await sql(world, both, Idempotency_Key="k")
    assert await sql(world, both, Idempotency_Key="k") == first
    assert len({result["execution_id"] for result in first}) == len(await world.facts("trigger.>")) == 2


# --- rights ----------------------------------------------------------------------------------------------------------

ADMIN, OPERATOR, AUTHOR, VIEWER = Role.ADMIN, Role.OPERATOR, Role.AUTHOR, Role.VIEWER
RIGHTS = [
    ("CREATE JOB new FUNCTION 'f'", {ADMIN, AUTHOR}),
    ("CREATE JOB job FUNCTION 'f'", set[Role]()),
    ("ALTER JOB job SET TIMEOUT = 5", {ADMIN}),
    ("ALTER JOB job SET STATE = PAUSED", {ADMIN}),
    ("ALTER JOB job SET STATE = ENABLED", {ADMIN}),
    ("DROP JOB job", {ADMIN}),
    ("EXECUTE JOB job", {ADMIN, OPERATOR}),
    (f"CANCEL JOB RUN {RUN}", {ADMIN, OPERATOR}),
    ("SHOW JOBS", {ADMIN, OPERATOR, AUTHOR, VIEWER}),
    ("SHOW CREATE JOB job", {ADMIN, OPERATOR, AUTHOR, VIEWER}),
]
"""The roles that may run a statement on the job of another owner."""


async def as_(world: World, identity: str, role: Role, text: str) -> httpx.Response:
    token = await world.token(identity, role)
    return await world.ask("POST", "/v1/sql", {"sql": text}, Authorization=f"Bearer {token}")


@pytest.mark.parametrize("role", [ADMIN, OPERATOR, AUTHOR, VIEWER])
@pytest.mark.parametrize(("text", "allowed"), RIGHTS, ids=[text for text, _ in RIGHTS])
async def test_role_may_run_exactly_the_listed_statements(
    world: World, text: str, allowed: set[Role], role: Role
) -> None:
    await world.given(name="job")
    await running(world)
    before = len(await world.facts(">"))
    answer = await as_(world, "ada", role, text)
    if role in allowed:
        assert answer.status_code == 200, answer.text
        return
    assert answer.status_code in {403, 409}, answer.text
    assert (answer.status_code == 409) is (text.startswith("CREATE JOB job") and role is ADMIN)
    assert len(await world.facts(">")) == before


async def test_author_changes_own_jobs(world: World) -> None:
    for text in ("CREATE JOB mine FUNCTION 'f'", "ALTER JOB mine SET TIMEOUT = 5", "EXECUTE JOB mine", "DROP JOB mine"):
        answer = await as_(world, "ada", AUTHOR, text)
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("text", [text for text, _ in RIGHTS if "job" in text.split() or RUN in text])
async def test_hidden_job_answers_like_a_missing_job(world: World, text: str) -> None:
    await world.given(name="job", owner="token:bea", viewers=("token:carl",))
    await running(world)
    answer = await as_(world, "eve", AUTHOR, text)
    assert answer.status_code == (403 if text.startswith("CREATE") else 404), answer.text
    assert "report" not in answer.text


async def test_hidden_jobs_are_not_listed(world: World) -> None:
    await world.given(name="hidden", owner="token:bea", viewers=("token:carl",))
    assert "hidden" not in (await as_(world, "eve", OPERATOR, "SHOW JOBS")).text
    assert "hidden" in (await as_(world, "carl", VIEWER, "SHOW JOBS")).text


async def test_a_job_depends_on_no_hidden_job(world: World) -> None:
    await world.given(name="hidden", owner="token:bea", viewers=("token:carl",))
    await world.given(name="job", owner="token:eve")
    for text in (
        "CREATE JOB new DEPENDS ON hidden SCHEDULE = '@daily' FUNCTION 'f'",
        "ALTER JOB job SET DEPENDS ON hidden",
    ):
        assert (await as_(world, "eve", AUTHOR, text)).status_code == 403
