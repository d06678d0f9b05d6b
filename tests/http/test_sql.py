"""`/v1/sql`: statements, with the rights of the operations that they stand for."""

import asyncio
import re
import threading
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import format_span_id, format_trace_id

from tests.domain.given import NOON, admitted
from tests.history_files import history_url
from tests.http.conftest import LOCAL, World
from tocsin.adapters.http.api.app import api
from tocsin.adapters.http.api_client import ApiClient
from tocsin.adapters.http.auth.authentication import Authentication
from tocsin.adapters.http.auth.tokens import Tokens
from tocsin.adapters.http.client import HttpOperator
from tocsin.adapters.sql.history import open_history
from tocsin.cli.jobs.commands import details
from tocsin.domain import job_record
from tocsin.domain.access import Role
from tocsin.domain.agent import AgentRecord, AgentState
from tocsin.domain.events import (
    Cancelled,
    Completed,
    Defined,
    Deleted,
    Failed,
    Failure,
    Paused,
    Resumed,
    Shard,
    Trigger,
)
from tocsin.domain.trace_context import TraceContext
from tocsin.services import calculations, statements
from tocsin.services.calculations import MAX_WAITING
from tocsin.services.operator import Operator
from tocsin.services.shards import ShardMaps
from tocsin.settings import Settings
from tocsin.subjects import Bucket, Stream

RUN = "11111111-1111-7111-8111-111111111111"
CREATE = "CREATE JOB nightly SCHEDULE = '0 3 * * *' FUNCTION 'report'"


async def sql(world: World, text: str, **headers: str) -> list[dict[str, Any]]:
    answer = await world.ask("POST", "/v1/sql", {"sql": text, "reason": "because"}, **headers)
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = answer.json()["results"]
    return results


DOCUMENT = {"job_name": "digest", "job_sql": "SELECT 1"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/sql", {"sql": "CREATE JOB digest AS 'SELECT 1'"}),
        ("/v1/jobs", DOCUMENT),
        ("/v1/jobs:apply", {"owner": "me", "jobs": [DOCUMENT]}),
    ],
)
@pytest.mark.parametrize("connection", ["main", None])
async def test_every_form_gets_the_default_connection(
    tmp_path: Path, path: str, body: dict[str, Any], connection: str | None
) -> None:
    settings = Settings.model_validate({"execution": {"default_connection": connection}})
    async with open_history(history_url(tmp_path)) as history:
        world = World(tmp_path, history, settings=settings)
        answer = await world.ask("POST", path, body)
        shown = await world.ask("GET", "/v1/jobs/digest")
    if connection is None:
        assert "connection" in {error["field"].rpartition(".")[2] for error in answer.json()["errors"]}
        assert (answer.status_code, shown.status_code) == (422, 404)
    else:
        assert answer.is_success, answer.text
        assert shown.json()["definition"]["sql"]["connection"] == connection


async def test_answer_names_what_no_worker_serves(world: World) -> None:
    answer = await world.ask("POST", "/v1/sql", {"sql": f"{CREATE}; SHOW JOBS"})
    [unread] = answer.json()["unserved"]
    assert (unread["queue"], unread["function"], unread["jobs"]) == ("default", None, ["nightly"])
    agent = AgentRecord(name="a-1", agent_id=RUN, state=AgentState.ENABLED, queues=["default"], functions=["report"])
    await world.projections.put(Bucket.AGENTS, f"a-1.{RUN}", agent.model_dump_json().encode())
    altered = await world.ask("POST", "/v1/sql", {"sql": "ALTER JOB nightly SET DESCRIPTION = 'x'"})
    assert altered.json()["unserved"] == []
    dropped = await world.ask("POST", "/v1/sql", {"sql": f"{CREATE.replace('nightly', 'b')}; DROP JOB b"})
    assert dropped.json()["unserved"] == []


@pytest.mark.parametrize("given", ["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "nonsense"])
async def test_execution_continues_the_trace_of_its_caller(world: World, given: str) -> None:
    await sql(world, f"{CREATE}; EXECUTE JOB nightly", traceparent=given)
    [stored] = [fact.message for fact in await world.facts("trigger.nightly.>")]
    assert isinstance(stored, Trigger)
    assert stored.traceparent == (given if given.startswith("00") else None)


@pytest.mark.parametrize("transport", ["nats", "http"])
async def test_execution_continues_the_current_trace(world: World, transport: str) -> None:
    """A command line, or a program with an operator, is itself part of a trace."""
    operator: Operator = HttpOperator(ApiClient(world.client), world.clock)
    if transport == "nats":
        operator = world.operator(lambda: nullcontext(world.history))
    provider = TracerProvider()
    with provider.get_tracer("program").start_as_current_span("release") as span:
        await operator.sql(f"{CREATE}; EXECUTE JOB nightly")
    await operator.sql("EXECUTE JOB nightly")
    provider.shutdown()
    of_span = span.get_span_context()
    trace = TraceContext(format_trace_id(of_span.trace_id), format_span_id(of_span.span_id), is_sampled=True)
    stored = [fact.message for fact in await world.facts("trigger.nightly.>")]
    assert [fact.traceparent for fact in stored if isinstance(fact, Trigger)] == [trace.traceparent, None]


async def refused(world: World, text: str, **headers: str) -> tuple[int, str, str]:
    answer = await world.ask("POST", "/v1/sql", {"sql": text}, **headers)
    problem = answer.json()
    return answer.status_code, problem["type"].rpartition(":")[2], problem["detail"]


async def running(world: World, job: str = "job") -> None:
    await world.log.append(admitted().changed(job=job, execution_id=RUN), expect=0)


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
        ("CREATE JOB a\nCLASS = ANYWHERE FUNCTION 'f'", 422, "invalid-definition", "line 2, column 1"),
        ("CREATE JOB a AS 'SELECT 1'", 422, "invalid-definition", "connection"),
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


@pytest.mark.parametrize(
    "text",
    [
        "CREATE JOB a " + "ENABLED " * 8_000,
        "CREATE JOB a DEPENDS ON a" + ",a" * 32_000,
        "CREATE JOB a CALL p(1" + ",1" * 32_000 + ")",
        "CREATE JOB a " + "(" * 10_000,
        "SELECT " + "(" * 7_000 + "1" + ")" * 7_000,
        "SELECT " + "(" * 10_000 + "1" + ")" * 10_000,
        "SELECT " + "1," * 524_288,
        "ENABLED " * 500_000,
        "'" * 65_536,
        "/*" * 32_768,
        ";" * 65_536,
        "CREATE JOB a FUNCTION 'f' WITH '" + '{"input":' + '{"a":' * 9_000 + "1" + "}" * 9_001 + "'",
    ],
)
async def test_hostile_text_is_refused(world: World, text: str) -> None:
    answer = await world.ask("POST", "/v1/sql", {"sql": text})
    assert answer.status_code in {413, 422}
    assert len(answer.content) < 2_000
    assert not await world.registry.jobs()


async def test_parse_ends_when_its_time_is_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calculations, "SECONDS", 0.0)
    status, kind, detail = await refused(world, f"{CREATE}; SHOW JOBS")
    assert (status, kind) == (422, "invalid-statement")
    assert "too much work" in detail
    assert not await world.registry.jobs()


async def test_definitions_are_checked_beside_the_event_loop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = list[str]()
    for name in ("defined", "altered", "create_statement"):
        checked = getattr(statements, name)

        def check(*arguments: Any, checked: Callable[..., Any] = checked) -> Any:  # noqa: ANN401 - as the original
            threads.append(threading.current_thread().name.partition("_")[0])
            return checked(*arguments)

        monkeypatch.setattr(statements, name, check)
    await sql(world, f"{CREATE}; ALTER JOB nightly SET TIMEOUT = 5; SHOW CREATE JOB nightly")
    assert threads == ["calculation"] * 3


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
    assert ("may be run only by" in answer.text) is (text.startswith("EXECUTE") and role is AUTHOR)
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


async def selected(world: World, text: str, **headers: str) -> list[dict[str, Any]]:
    [result] = await sql(world, text, **headers)
    return [dict(zip(result["columns"], row, strict=True)) for row in result["rows"]]


async def ran(world: World, **definition: Any) -> None:  # noqa: ANN401 - the fields of a definition
    """A run in the history that completed, under the definition in force."""
    await world.given(**definition)
    of_run: dict[str, Any] = {"job": definition["name"], "execution_id": RUN, "scheduled_time": NOON, "trigger": "cron"}
    await ended(world, Completed(**of_run, result={"rows_affected": 7, "message": "seven"}))


async def ended(world: World, end: Completed | Failed) -> None:
    """A run in the history with this end, under the definition in force."""
    job = await world.registry.job(end.job)
    fields = {name: getattr(end, name) for name in ("job", "execution_id", "scheduled_time", "trigger")}
    begun = admitted().changed(**fields)
    begun = begun.changed(plan=begun.plan.changed(definition=job.sequence))
    await world.log.append(begun, expect=0)
    sequence = (await world.facts("execution.>"))[-1].sequence
    await world.log.append(end, expect=sequence)
    facts = await world.facts("execution.>")
    await world.history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)


async def test_tables_have_the_columns_of_the_specification(world: World) -> None:
    await ran(world, name="extract", description="d", schedule="0 1 * * *")
    await world.given(name="load", schedule="0 2 * * *", depends_on=["extract", "missing"])
    await world.registry.pause("load")
    [extract, load] = await selected(
        world,
        "SELECT job_uuid, job_name, job_class, job_type, schedule_type, cron_expression, next_run_time, state, description\n"
        "FROM sys.jobs ORDER BY next_run_time DESC",
    )
    assert (extract["job_name"], extract["state"], extract["job_type"]) == ("extract", "ENABLED", "EXTERNAL")
    assert (extract["job_class"], extract["schedule_type"], extract["description"]) == ("LOCAL_SAFE", "RECURRING", "d")
    assert (load["state"], load["next_run_time"]) == ("PAUSED", None)
    [run] = await selected(
        world,
        "SELECT job_run_uuid, job_name, scheduled_time, started_at, completed_at, state, result_message, rows_affected "
        "FROM sys.job_runs WHERE job_uuid = (SELECT job_uuid FROM sys.jobs WHERE job_name = 'extract') "
        "ORDER BY started_at DESC LIMIT 10",
    )
    assert (run["job_run_uuid"], run["state"], run["result_message"], run["rows_affected"]) == (
        *(RUN, "COMPLETED", "seven", 7),
    )
    rows = await selected(world, "SELECT * FROM sys.job_dependencies ORDER BY depends_on_job_name")
    assert [(row["job_name"], row["depends_on_job_name"]) for row in rows] == [("load", "extract"), ("load", "missing")]
    assert [row["depends_on_job_uuid"] for row in rows] == [extract["job_uuid"], None]
    agent = AgentRecord(name="mail-1", agent_id=RUN, state=AgentState.ENABLED, queues=["a", "b"], max_concurrent_jobs=3)
    await world.projections.put(Bucket.AGENTS, f"mail-1.{RUN}", agent.model_dump_json().encode())
    await ShardMaps(world.log).apply([Shard(shard_id="eu-1", name="Europe", labels={"zone": "a"})])
    [shard] = await selected(world, "SELECT * FROM sys.shards")
    assert (shard["shard_id"], shard["shard_name"], shard["state"]) == ("eu-1", "Europe", "ACTIVE")
    [row] = await selected(world, "SELECT * FROM sys.agents")
    assert (row["agent_name"], row["queues"], row["max_concurrent_jobs"], row["running"]) == ("mail-1", "a, b", 3, 0)


async def test_statements_of_the_docs_are_carried_out(world: World) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/sql.md").read_text("utf-8")
    changes, query = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    results = await sql(world, changes)
    assert [result["statement"] for result in results] == ["CREATE JOB", "CREATE JOB", "ALTER JOB", "EXECUTE JOB"]
    extract, load = [(await world.registry.job(name)).definition for name in ("extract-sales", "load-sales")]
    assert (extract.schedule, extract.timezone, extract.timeout) == ("0 1 * * *", "Europe/Berlin", 600)
    assert (extract.retry.max_attempts, extract.retry.initial_delay) == (6, 30)
    assert (load.depends_on[0].job, load.description, load.tags) == (
        extract.name,
        "Loads yesterday's sales",
        ("sales",),
    )
    assert (load.function, load.input, load.retry.max_attempts) == ("sales.load", {"table": "sales"}, 1)
    assert (await world.registry.job("load-sales")).status == "paused"

    error = Failure(type="ValueError", message="boom")
    now = datetime.now(UTC)  # the time of SQLite, with which the query compares
    of_run: dict[str, Any] = {"job": extract.name, "execution_id": RUN, "scheduled_time": now, "trigger": "cron"}
    await ended(world, Failed(**of_run, step="main", attempt=1, error=error))
    columns = ("job_name", "state", "result_message", "rows_affected")
    row = dict(zip(columns, (extract.name, "FAILED", "ValueError: boom", None), strict=True))
    assert await selected(world, query) == [row]


async def test_every_answer_has_the_same_job_uuid(world: World) -> None:
    """Also after a change; a job that is registered again has another, and runs that ended before have none."""

    async def shown() -> str:
        [listed] = await sql(world, "SHOW JOBS")
        [of_list] = [dict(zip(listed["columns"], row, strict=True))["job_uuid"] for row in listed["rows"]]
        [of_jobs] = [row["job_uuid"] for row in await selected(world, "SELECT job_uuid FROM sys.jobs")]
        of_api = (await world.ask("GET", "/v1/jobs/nightly")).json()["job_uuid"]
        of_cli = details(await world.registry.job("nightly"), world.clock.now())["job_uuid"]
        of_history = job_record.fold({}, await world.log.read("ledger.nightly.>"))["nightly"].id  # and of transactions
        assert len({of_list, of_jobs, of_api, of_cli, of_history}) == 1
        return str(of_list)

    runs = "SELECT job_uuid FROM sys.job_runs"
    await ran(world, name="nightly", schedule="0 3 * * *")
    first = await shown()
    world.clock.advance(5)
    await sql(world, "ALTER JOB nightly SET TIMEOUT = 5")
    await world.registry.pause("nightly")
    assert await shown() == first
    assert await selected(world, runs) == [{"job_uuid": first}]
    await sql(world, "DROP JOB nightly")
    assert await selected(world, runs) == [{"job_uuid": None}]
    world.clock.advance(5)
    await sql(world, CREATE)
    assert await shown() != first
    assert await selected(world, runs) == [{"job_uuid": None}]


async def test_select_shows_only_visible_jobs_and_runs(world: World) -> None:
    await ran(world, name="hidden", owner="token:bea", viewers=("token:carl",))
    await world.given(name="shown", depends_on=["hidden"], schedule="@daily")
    query = (
        "SELECT (SELECT count(*) FROM sys.jobs) jobs, (SELECT count(*) FROM sys.job_runs) runs, "
        "(SELECT count(depends_on_job_uuid) FROM sys.job_dependencies) known"
    )
    for identity, role, counts in (
        ("eve", OPERATOR, (1, 0, 0)),
        ("carl", VIEWER, (2, 1, 1)),
        ("root", ADMIN, (2, 1, 1)),
    ):
        answer = await as_(world, identity, role, query)
        assert answer.json()["results"][0]["rows"] == [list(counts)], identity


async def test_runs_need_the_permission_for_history(world: World) -> None:
    await world.given(name="job")
    assert (await as_(world, "ada", Role.CATALOG, "SELECT count(*) FROM sys.jobs")).status_code == 200
    assert (await as_(world, "ada", Role.CATALOG, "SELECT count(*) FROM sys.job_runs")).status_code == 403


async def test_select_cannot_change_anything(world: World) -> None:
    for text in ("SELECT 1 FROM sqlite_master", "SELECT nope FROM sys.jobs", "SELECT randomblob(9)"):
        status, kind, detail = await refused(world, f"SHOW JOBS;\n {text}")
        assert (status, kind) == (422, "invalid-statement")
        assert "line 2, column 2" in detail


async def test_selects_of_two_teams_take_turns(world: World) -> None:
    """A team with many requests waits in its own line; another team is answered meanwhile."""
    parts = world.parts()
    authentication = Authentication(Tokens(parts.projections, parts.clock), None, parts.clock)
    transport = httpx.ASGITransport(api(parts, authentication, world.rate))
    client = httpx.AsyncClient(transport=transport, base_url=LOCAL)
    tokens = [await world.token(name, Role.OPERATOR, namespaces=(name[:1],)) for name in ("a1", "a2", "b")]
    ours, same_team, others = ({"Authorization": f"Bearer {token}"} for token in tokens)

    async def ask(text: str, headers: dict[str, str]) -> httpx.Response:
        return await client.post("/v1/sql", json={"sql": text}, headers=headers)

    async with parts.selects.turn("@a"):
        waiting = [asyncio.create_task(ask("SELECT 1", headers)) for headers in (ours, same_team) for _ in range(5)]
        assert (await ask("SELECT 1", others)).status_code == 200
        assert (await ask("SHOW JOBS", ours)).status_code == 200
        assert not any(task.done() for task in waiting)
        async with parts.selects.turn("@c"):
            late = asyncio.create_task(ask("SELECT 1", others))
            async with asyncio.timeout(60):
                while not parts.selects.has("@b"):  # noqa: ASYNC110 - the line has no event
                    await asyncio.sleep(0)
            assert (await ask("SHOW JOBS", others)).status_code == 200
            assert not late.done()
    assert {answer.status_code for answer in await asyncio.gather(late, *waiting)} == {200}


async def test_selects_beyond_a_line_are_refused(world: World) -> None:
    parts = world.parts()
    authentication = Authentication(Tokens(parts.projections, parts.clock), None, parts.clock)
    client = httpx.AsyncClient(transport=httpx.ASGITransport(api(parts, authentication, world.rate)), base_url=LOCAL)
    headers = {"Authorization": f"Bearer {await world.token('a', Role.OPERATOR, namespaces=('a',))}"}
    async with parts.selects.turn("@a"):
        tasks = [
            asyncio.create_task(client.post("/v1/sql", json={"sql": "SELECT 1"}, headers=headers))
            for _ in range(MAX_WAITING + 1)
        ]
        [refused, *_], _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        answer = refused.result()
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:tocsin:problem:busy")
    assert sorted(answer.status_code for answer in await asyncio.gather(*tasks)) == [*[200] * MAX_WAITING, 503]


async def test_runs_are_read_in_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "RUNS_OF_A_PAGE", 1)
    monkeypatch.setattr(statements, "MAX_RUNS", 2)
    await world.given(name="job")
    for number in range(3):
        run = f"{number}1111111-1111-7111-8111-111111111111"
        await world.log.append(admitted().changed(job="job", execution_id=run), expect=0)
    facts = await world.facts("execution.>")
    await world.history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)
    [result] = await sql(world, "SELECT count(*) FROM sys.job_runs")
    assert (result["rows"], result["truncated"]) == ([[2]], True)
    monkeypatch.setattr(statements, "MAX_RUNS", 10)
    [result] = await sql(world, "SELECT count(*) FROM sys.job_runs")
    assert (result["rows"], result["truncated"]) == ([[3]], False)


async def test_job_type_follows_from_the_work(world: World) -> None:
    await sql(
        world,
        "CREATE JOB a FUNCTION 'f'; CREATE JOB b CONNECTION 'dwh' AS 'SELECT 1'; CREATE JOB c CONNECTION 'dwh' CALL f(1)",
    )
    rows = await selected(world, "SELECT job_type FROM sys.jobs ORDER BY job_name")
    assert [row["job_type"] for row in rows] == ["EXTERNAL", "SQL", "PROCEDURE"]
