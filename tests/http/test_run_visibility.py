"""Executions are visible under the definition that they ran under, not of the newest of the name."""

import json
from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote

import pytest

from tests.domain.given import admitted, plan
from tests.http.conftest import World
from tocsin import subjects
from tocsin.adapters.http.auth.visibility import Visibility
from tocsin.domain import ledger
from tocsin.domain.access import Principal, Role
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Actor,
    DeadLettered,
    EventIgnored,
    Failed,
    Failure,
    NotificationRaised,
    PoisonMessage,
    Replayed,
    Requested,
    Skipped,
    validated,
)
from tocsin.domain.events.execution import Refusal
from tocsin.domain.notification import Kind
from tocsin.subjects import Stream

OLD: Final = "11111111-1111-7111-8111-111111111111"
NEW: Final = "22222222-2222-7222-8222-222222222222"
REFUSED: Final = "33333333-3333-7333-8333-333333333333"
TEXT: Final = "the secret input"
EVE, CARL, BEA = (Principal(name, frozenset({Role.AUTHOR}), "token") for name in ("eve", "carl", "bea"))


async def _define(world: World, owner: str, *viewers: str, waited: float = 0, **changes: object) -> int:
    """Register the job as its creator does with the command line, and return the sequence of the definition.

    `waited`: the seconds from the request until the log has the definition.
    """
    base = {"name": "job", "function": "f", "schedule": "0 3 * * *", "owner": f"token:{owner}", "viewers": viewers}
    fields = {**base, **changes}
    by = Actor(identity=owner, kind="token")
    definition = JobDefinition.model_validate(fields)
    if waited:
        [fact] = ledger.define(ledger.initial, definition, by=by)
        await world.log.append(fact.changed(since=world.clock.now() - timedelta(seconds=waited)), expect=0)
    else:
        await world.registry.define(definition, by=by)
    recorded = await world.log.last(subjects.definition("job"))
    assert recorded is not None
    return recorded.sequence


async def _run(world: World, execution_id: str, definition: int) -> None:
    """Store an execution that failed, with its dead letter and a replay of it."""
    world.clock.advance(60)
    planned = plan().changed(definition=definition, input={"text": TEXT})
    run: dict[str, Any] = {"job": "job", "execution_id": execution_id}
    now, error = world.clock.now(), Failure(type="E", message=TEXT)
    begun = admitted(planned).changed(**run, scheduled_time=now)
    first = await world.log.append(begun, expect=0)
    await world.log.append(
        Failed(**run, scheduled_time=now, trigger="cron", error=error, dead_letter=True), expect=first
    )
    letter = DeadLettered(
        **run,
        id=execution_id,
        scheduled_time=now,
        trigger="cron",
        attempts=(),
        first_attempt=now,
        last_attempt=now,
        last_error=error,
        input={"text": TEXT},
        definition=definition,
    )
    kept = await world.log.append(letter, expect=0)
    replayed = Replayed(job="job", id=execution_id, number=1, input={"text": TEXT})
    await world.log.append(replayed, expect=kept)


@pytest.fixture
async def inherited(world: World) -> World:
    """A hidden job of bea with an execution was deleted; eve has its name, and an execution that bea may not see."""
    await _run(world, OLD, await _define(world, "bea", "token:carl"))
    refused = Skipped(
        job="job",
        execution_id=REFUSED,
        reason="refused",
        scheduled_time=world.clock.now(),
        trigger="event",
        definition=0,
        refusal=Refusal(code="invalid-definition", message=TEXT),
    )
    await world.log.append(refused, expect=0)
    letter = PoisonMessage.of("job", "planner-triggers", "trigger.job", 7, TEXT.encode(), TEXT)
    await world.log.append(letter, expect=0)
    world.clock.advance(60)
    await world.registry.delete("job")
    world.clock.advance(60)
    await _run(world, NEW, await _define(world, "eve", "token:dan"))
    facts = [*await world.facts("execution.>"), *await world.facts("dead-letter.>")]
    facts.sort(key=lambda recorded: recorded.sequence)
    await world.history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)
    return world


async def _text(world: World, caller: Principal, path: str) -> tuple[int, str]:
    token = await world.token(caller.identity, *caller.roles)
    answer = await world.ask("GET", path, Authorization=f"Bearer {token}")
    return answer.status_code, answer.text


POISON: Final = PoisonMessage.id_of("planner-triggers", 0, 7)


@pytest.mark.parametrize(
    "path",
    [
        f"/v1/executions/{OLD}",
        f"/v1/executions/{OLD}/events",
        f"/v1/executions/{OLD}/logs",
        f"/v1/executions/{REFUSED}",
        f"/v1/executions/{REFUSED}/events",
        f"/v1/dead-letters/{OLD}",
        f"/v1/dead-letters/{OLD}/events",
        f"/v1/dead-letters/{POISON}",
        f"/v1/dead-letters/{POISON}/events",
        f"/ojs/v1/jobs/{OLD}",
        "/v1/jobs/job/definitions/1",
    ],
)
async def test_new_author_sees_nothing_of_before(inherited: World, path: str) -> None:
    status, text = await _text(inherited, EVE, path)
    assert status == 404
    assert TEXT not in text
    for caller in (CARL, BEA):
        assert (await _text(inherited, caller, path))[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/executions", "/v1/dead-letters?unresolved=false", "/ojs/v1/dead-letter", "/ojs/v1/events"),
        *("/ojs/v1/admin/jobs", "/ojs/v1/admin/dead-letter"),
    ],
)
async def test_lists_show_runs_of_the_own_registration(inherited: World, path: str) -> None:
    for caller, seen, hidden in ((EVE, NEW, OLD), (CARL, OLD, NEW), (BEA, OLD, NEW)):
        status, text = await _text(inherited, caller, path)
        assert status == 200
        assert seen in text
        assert hidden not in text
        assert REFUSED not in text or caller is not EVE


async def test_notifications_show_runs_of_the_own_registration(inherited: World) -> None:
    now = inherited.clock.now()
    for execution_id, at in ((OLD, now - timedelta(minutes=3)), (NEW, now)):
        fact = NotificationRaised(job="job", id=execution_id, channel="ops", kind=Kind.FAILED, at=at, reason=TEXT)
        await inherited.log.append(fact, expect=0)
    for caller, seen, hidden in ((EVE, NEW, OLD), (CARL, OLD, NEW)):
        operator = Principal(caller.identity, frozenset({Role.OPERATOR}), "token")
        status, text = await _text(inherited, operator, "/v1/notifications")
        assert (status, seen in text, hidden in text) == (200, True, False)
        assert POISON not in text or caller is not EVE
        first = json.loads((await _text(inherited, operator, "/v1/notifications?limit=1"))[1])
        second = json.loads((await _text(inherited, operator, f"/v1/notifications?limit=1&cursor={first['next']}"))[1])
        ids = [[row["id"] for row in page["notifications"]] for page in (first, second)]
        assert (ids, second["next"]) == ([[NEW], []] if seen == NEW else [[], [OLD]], None)


async def test_statistics_count_runs_of_the_own_registration(inherited: World) -> None:
    root = Principal("root", frozenset({Role.ADMIN}), "token")
    times = {"all": "2000-01-01T00:00:00Z", "new": (inherited.clock.now() - timedelta(seconds=1)).isoformat()}
    expected = {("all", EVE): 1, ("all", CARL): 1, ("all", BEA): 1, ("all", root): 2}
    expected |= {("new", EVE): 1, ("new", CARL): 0, ("new", BEA): 0, ("new", root): 1}
    for (since, caller), number in expected.items():
        status, text = await _text(inherited, caller, f"/v1/stats?since={quote(times[since])}")
        assert (status, json.loads(text)["executions"]["total_executions"]) == (200, number), (since, caller)
    status, text = await _text(inherited, EVE, "/v1/stats?job=job&since=2000-01-01T00:00:00Z")
    assert (status, json.loads(text)["executions"]["total_executions"]) == (200, 1)


@pytest.mark.parametrize("verb", ["cancel", "replay", "resolve", "retry", "discard", "ojs-cancel"])
async def test_new_author_changes_nothing_of_before(inherited: World, verb: str) -> None:
    method, path = {
        "cancel": ("POST", f"/v1/executions/{OLD}/cancel"),
        "replay": ("POST", f"/v1/dead-letters/{OLD}/replay"),
        "resolve": ("PATCH", f"/v1/dead-letters/{OLD}"),
        "retry": ("POST", f"/ojs/v1/dead-letter/{OLD}/retry"),
        "discard": ("DELETE", f"/ojs/v1/dead-letter/{OLD}"),
        "ojs-cancel": ("DELETE", f"/ojs/v1/jobs/{OLD}"),
    }[verb]
    before = await inherited.facts("*.>")
    token = await inherited.token("eve", Role.AUTHOR)
    assert (await inherited.ask(method, path, Authorization=f"Bearer {token}")).status_code == 404
    assert await inherited.facts("*.>") == before


async def test_replay_needs_the_permission_for_both_jobs(inherited: World) -> None:
    """The old input would go to the job that has the name now."""
    token = await inherited.token("bea", Role.AUTHOR)
    answer = await inherited.ask(
        "POST", f"/v1/dead-letters/{OLD}/replay", {"again": True}, Authorization=f"Bearer {token}"
    )
    assert answer.status_code == 403
    every = await inherited.ask("POST", "/v1/dead-letters/replay-all", {}, Authorization=f"Bearer {token}")
    assert every.json()["replayed"] == []


async def test_feeds_withhold_events_of_before(inherited: World) -> None:
    events = await inherited.facts("*.>")
    for is_lookup_needed in (False, True):
        visibility = Visibility(inherited.log, inherited.clock)
        for recorded in events:
            if is_lookup_needed and isinstance(recorded.message, Requested | DeadLettered | PoisonMessage):
                continue  # the reader begins in the middle of the execution
            sees_eve, sees_carl = [await visibility.may_see_event(caller, recorded) for caller in (EVE, CARL)]
            is_new = NEW in recorded.subject or (recorded.subject == "ledger.job.defined" and recorded.sequence > 1)
            assert (sees_eve, sees_carl) == (is_new, not is_new), recorded.subject


@pytest.mark.parametrize("waited", [0, 30])
async def test_later_definition_only_narrows_visibility(world: World, waited: float) -> None:
    await _run(world, OLD, await _define(world, "bea", "token:carl", waited=waited))
    world.clock.advance(60)
    await _run(world, NEW, await _define(world, "bea"))
    path = f"/v1/executions/{OLD}"
    assert (await _text(world, EVE, path))[0] == 404
    assert (await _text(world, EVE, f"/v1/executions/{NEW}"))[0] == 200
    world.clock.advance(60)
    await _define(world, "bea", "token:eve")
    for caller, old, new in ((EVE, 404, 200), (CARL, 404, 404), (BEA, 200, 200)):
        assert (await _text(world, caller, path))[0] == old
        assert (await _text(world, caller, f"/v1/executions/{NEW}"))[0] == new


async def test_why_is_answered_by_registration(inherited: World) -> None:
    status, text = await _text(inherited, BEA, "/v1/jobs/job/why")
    assert (status, TEXT in text) == (404, False)
    assert (await _text(inherited, EVE, "/v1/jobs/job/why"))[0] == 200


@pytest.mark.parametrize("schedule", ["0 3 * * *", None])
async def test_why_rests_on_the_present_registration(world: World, schedule: str | None) -> None:
    """Neither an occurrence, nor an event that started nothing, of a hidden job that had the name before is explained."""
    fields: dict[str, Any] = {"schedule": schedule, "triggers": [{"nats": "orders.>"}]}
    await _define(world, "bea", "token:carl", **fields)
    world.clock.advance(86_400)
    await _ignore_and_refuse(world, REFUSED, TEXT)
    world.clock.advance(60)
    await world.registry.delete("job")
    world.clock.advance(60)
    began = world.clock.now()
    await _define(world, "eve", "token:dan", **fields)
    world.clock.advance(60)
    times = ["", *(f"?time={at:%Y-%m-%dT%H:%M:%SZ}" for at in (began - timedelta(seconds=90), world.clock.now()))]
    for time, verdict in zip(
        times,
        ("future" if schedule else "on-demand", "before-the-job", "not-scheduled" if schedule else "on-demand"),
        strict=True,
    ):
        status, text = await _text(world, EVE, f"/v1/jobs/job/why{time}")
        assert (status, TEXT in text) == (200, False), text
        [answer] = json.loads(text)["answers"]
        assert (answer["verdict"], len(answer["facts"])) == (verdict, 1)
    await _ignore_and_refuse(world, NEW, "own text")
    for caller, own in ((EVE, 200), (CARL, 404)):
        status, text = await _text(world, caller, "/v1/jobs/job/why")
        assert (status, TEXT in text, "own text" in text) == (own, False, own == 200), text
    world.clock.advance(60)
    await _define(world, "eve", "token:dan", "token:carl", **fields)
    status, text = await _text(world, CARL, "/v1/jobs/job/why")
    assert (status, "own text" in text) == (200, False)  # recorded before carl became a viewer
    world.clock.advance(60)
    status, text = await _text(world, CARL, f"/v1/jobs/job/why{times[1]}")
    assert (status, TEXT in text) == (200, True)  # he saw the earlier job, too


async def _ignore_and_refuse(world: World, execution_id: str, text: str) -> None:
    """Store that a trigger of the job heard two events: one started nothing, the other was refused."""
    now = world.clock.now()
    reference = {"stream": "ORDERS", "sequence": 1, "subject": "orders.paid", "time": now}
    ignored = {"job": "job", "trigger_id": "t", "event": reference, "reason": "duplicate", "key": text}
    fact = validated(EventIgnored, ignored)
    await world.log.publish(subjects.subject_of(fact), fact, message_id=execution_id)
    refused = {"job": "job", "execution_id": execution_id, "reason": "refused", "trigger": "event", "definition": 0}
    refusal = {"code": "evaluation-failed", "message": text}
    await world.log.append(validated(Skipped, {**refused, "scheduled_time": now, "refusal": refusal}), expect=0)


async def test_run_without_readable_beginning_is_hidden(world: World) -> None:
    await _define(world, "eve")
    failed = Failed(job="job", execution_id=OLD, scheduled_time=world.clock.now(), trigger="cron")
    await world.log.append(failed, expect=0)
    assert (await _text(world, EVE, f"/v1/executions/{OLD}"))[0] == 404
    [event] = await world.facts("execution.>")
    assert not await Visibility(world.log, world.clock).may_see_event(EVE, event)


@pytest.mark.parametrize(
    ("caller", "of_run", "of_letter"),
    [
        (Principal("root", frozenset({Role.ADMIN}), "token"), ["cancel", "trigger"], ["replay"]),
        (EVE, ["cancel", "trigger"], ["replay"]),
        (Principal("dan", frozenset({Role.OPERATOR}), "token"), ["cancel", "trigger"], ["replay"]),
        (Principal("dan", frozenset({Role.AUTHOR}), "token"), [], []),
        (Principal("dan", frozenset({Role.VIEWER}), "token"), [], []),
    ],
)
async def test_details_say_what_the_caller_may_do(
    inherited: World, caller: Principal, of_run: list[str], of_letter: list[str]
) -> None:
    token = await inherited.token(caller.identity, *caller.roles)
    bearer = {"Authorization": f"Bearer {token}"}
    run = (await inherited.ask("GET", f"/v1/executions/{NEW}", **bearer)).json()
    letter = (await inherited.ask("GET", f"/v1/dead-letters/{NEW}", **bearer)).json()
    assert (run["permitted"], letter["permitted"]) == (of_run, of_letter)
    # What is not permitted is refused.
    for permission, path in (
        ("cancel", f"/v1/executions/{NEW}/cancel"),
        ("trigger", "/v1/jobs/job/trigger"),
        ("replay", f"/v1/dead-letters/{NEW}/replay"),
    ):
        answer = await inherited.ask("POST", path, {}, **bearer)
        assert (answer.status_code != 403) == (permission in (*of_run, *of_letter)), path


async def test_deleted_job_is_not_permitted_to_be_triggered(inherited: World) -> None:
    await inherited.registry.delete("job")
    inherited.client = inherited.copy()
    run = (await inherited.ask("GET", f"/v1/executions/{NEW}")).json()
    assert run["permitted"] == ["cancel"]
