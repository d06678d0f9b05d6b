"""`/v1/jobs:apply`: the plan, what it does, and whose jobs it may touch."""

from datetime import timedelta
from typing import Any

import pytest

from tests.domain.given import ID
from tests.http.conftest import World
from tocsin.domain.access import Role
from tocsin.domain.agent import AgentRecord, AgentState
from tocsin.domain.events import Defined, Deleted
from tocsin.subjects import Bucket

ONE = {"name": "one", "schedule": "0 9 * * *", "function": "f"}
TWO = {"name": "two", "cron": "0 10 * * *", "type": "a.b"}


async def apply(world: World, jobs: list[dict[str, Any]], **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    answer = await world.ask("POST", "/v1/jobs:apply", {"jobs": jobs, **more})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


async def test_plan_lists_changes_without_making_them(world: World) -> None:
    result = await apply(world, [ONE, TWO], dry_run=True)
    assert result["summary"] == {"create": 2, "update": 0, "unchanged": 0, "delete": 0}
    [one, _] = result["changes"]
    assert (one["job"], one["action"], one["expressions"]) == ("one", "create", ["0 9 * * *"])
    assert one["instants_added"]["count"] == 7
    assert one["fires_at_once"] == []
    assert not await world.facts("ledger.>")


async def test_update_lists_fields_instants_and_clock_changes(world: World) -> None:
    await apply(world, [{**ONE, "timezone": "Europe/Berlin"}])
    world.clock.advance(timedelta(days=85).total_seconds())
    result = await apply(world, [{**ONE, "timezone": "Europe/Berlin", "schedule": "30 2 * * *"}], dry_run=True)
    [change] = result["changes"]
    assert [one["field"] for one in change["differences"]] == ["schedule"]
    assert (change["instants_added"]["count"], change["instants_removed"]["count"]) == (6, 7)
    [clocks] = change["clock_changes"]
    assert (clocks["kind"], clocks["effect"], clocks["local_times"]) == ("gap", "skipped", ["2026-03-29T02:30:00"])


async def test_applying_again_changes_nothing(world: World) -> None:
    await apply(world, [ONE, TWO])
    result = await apply(world, [ONE, TWO])
    assert result["summary"]["unchanged"] == 2
    assert len(await world.facts("ledger.>")) == 2


async def test_pruning_deletes_only_jobs_of_the_owner(world: World) -> None:
    await apply(world, [ONE], owner="team")
    await world.given(name="stranger", owner="other")
    await world.given(name="nobodys")
    result = await apply(world, [TWO], owner="team", prune=True, reason="moved")
    assert {change["job"]: change["action"] for change in result["changes"]} == {"two": "create", "one": "delete"}
    assert {job.name for job in await world.registry.jobs()} == {"two", "stranger", "nobodys"}
    [fact] = [r.message for r in await world.facts("ledger.one.deleted")]
    assert isinstance(fact, Deleted)
    assert (fact.reason, fact.by.identity if fact.by else None) == ("moved", "anonymous")


async def test_rollback_is_applying_earlier_definitions(world: World) -> None:
    await apply(world, [ONE])
    await apply(world, [{**ONE, "schedule": "@hourly"}])
    await apply(world, [ONE])
    facts = [r.message for r in await world.facts("ledger.one.>")]
    assert [fact.definition.schedule for fact in facts if isinstance(fact, Defined)] == [
        "0 9 * * *",
        "@hourly",
        "0 9 * * *",
    ]


async def test_one_wrong_definition_keeps_all_from_being_applied(world: World) -> None:
    answer = await world.ask("POST", "/v1/jobs:apply", {"jobs": [ONE, {**TWO, "cron": "61 * * * *"}, ONE]})
    assert answer.status_code == 422
    result = answer.json()["errors"]
    assert {error["field"] for error in result} == {"cron", ""}
    assert not await world.facts("ledger.>")


async def test_author_applies_only_own_jobs(world: World) -> None:
    await world.given(name="one", owner="token:bea")
    token = await world.token("ada", Role.AUTHOR)
    authorized = {"Authorization": f"Bearer {token}"}
    refused = await world.ask("POST", "/v1/jobs:apply", {"jobs": [TWO, ONE]}, **authorized)
    assert refused.status_code == 403
    assert [job.name for job in await world.registry.jobs()] == ["one"]
    pruned = await world.ask("POST", "/v1/jobs:apply", {"jobs": [], "owner": "token:bea", "prune": True}, **authorized)
    assert pruned.status_code == 403
    assert (await world.ask("POST", "/v1/jobs:apply", {"jobs": [TWO]}, **authorized)).status_code == 200
    [two] = [job for job in await world.registry.jobs() if job.name == "two"]
    assert (two.definition.owner, two.created_by) == ("token:ada", "token:ada")


async def test_backfill_requests_past_instants(world: World) -> None:
    await world.given(schedule="0 3 * * *", overlap_policy="allow")
    asked = {"start": "2025-12-31T00:00:00Z", "reason": "late data"}
    result = await world.ask("POST", "/v1/jobs/job/backfill", {**asked, "dry_run": True})
    assert (result.json()["count"], result.json()["requested"]) == (1, 0)
    done = await world.ask("POST", "/v1/jobs/job/backfill", asked)
    assert (done.status_code, done.json()["requested"], done.json()["instants"]) == (202, 1, ["2025-12-31T03:00:00Z"])
    await world.ask("POST", "/v1/jobs/job/backfill", asked)
    assert len(await world.facts("trigger.job.>")) == 1
    naive = await world.ask("POST", "/v1/jobs/job/backfill", {"start": "2025-12-31T00:00:00"})
    assert naive.status_code == 422
    future = await world.ask(
        "POST", "/v1/jobs/job/backfill", {"start": "2025-12-31T00:00:00Z", "end": "2030-01-01T00:00:00Z"}
    )
    assert future.status_code == 409


async def test_why_names_the_decision_and_its_facts(world: World) -> None:
    await world.given()
    await world.registry.pause("job", reason="maintenance")
    world.clock.advance(4 * 3_600)
    result = (await world.ask("GET", "/v1/jobs/job/why?time=2026-01-02T03:00:00Z")).json()
    [answer] = result["answers"]
    assert (answer["verdict"], answer["reason"]) == ("future-paused", "maintenance")
    assert [fact["fact"]["type"] for fact in answer["facts"]][-1] == "paused"
    assert (await world.ask("GET", "/v1/jobs/nobody/why")).status_code == 404


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59Z", "0001-01-01T00:00:00"])
async def test_why_refuses_a_time_beyond_the_calendar(world: World, time: str) -> None:
    await world.given()
    answer = await world.ask("GET", f"/v1/jobs/job/why?time={time}")
    [error] = answer.json()["errors"]
    assert (answer.status_code, error["field"], error["value"][1:11]) == (422, "time", time[:10])
    assert "1970" in error["right"]


async def test_statistics_of_nothing_are_zero(world: World) -> None:
    result = (await world.ask("GET", "/v1/stats")).json()
    assert result["executions"]["total_executions"] == 0


@pytest.mark.parametrize("dry_run", [True, False])
async def test_answer_names_what_no_worker_serves(world: World, dry_run: bool) -> None:  # noqa: FBT001 - a parameter of the test
    [unread] = (await apply(world, [ONE], dry_run=dry_run))["unserved"]
    assert (unread["queue"], unread["function"], unread["jobs"]) == ("default", None, ["one"])
    assert unread["message"].startswith("no worker reads queue `default` (job one)")
    agent = AgentRecord(
        name="a-1", agent_id=ID, state=AgentState.ENABLED, queues=["default"], functions=["g", "mail/send"]
    )
    await world.projections.put(Bucket.AGENTS, f"a-1.{ID}", agent.model_dump_json().encode())
    [missing] = (await apply(world, [{**ONE, "function": "mail/sent"}], dry_run=dry_run))["unserved"]
    assert (missing["function"], missing["nearest"]) == ("mail/sent", "mail/send")
    assert (await apply(world, [{**ONE, "function": "g"}], dry_run=dry_run))["unserved"] == []
