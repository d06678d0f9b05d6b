"""`tocsin dead-letters`: show, replay, replay-all, resolve."""

import pytest

from tests.cli.conftest import World
from tests.cli.test_executions import ERROR, record
from tests.domain.given import ID, JOB
from tocsin.cli.input.values import rate
from tocsin.cli.runtime.errors import UsageError
from tocsin.domain.events import Attempt, DeadLettered, PoisonMessage, Replayed, Resolved
from tocsin.subjects import Stream
from tocsin.testing import START

OTHER = f"{ID[:-1]}2"


def letter(id_: str = ID) -> DeadLettered:
    trace = "Traceback (most recent call last):\n  boom"
    return DeadLettered(
        job=JOB,
        id=id_,
        execution_id=id_,
        scheduled_time=START,
        trigger="cron",
        input={"day": "monday"},
        attempts=(Attempt(step="main", attempt=1, started_at=START, worker="w-1", error=ERROR),),
        last_error=ERROR.changed(traceback=trace),
        first_attempt=START,
        last_attempt=START,
    )


@pytest.fixture
def kept(world: World) -> World:
    path = world.jobs(f"jobs: [{{ name: {JOB}, function: f }}]")
    assert world.call("jobs", "apply", "-f", path).code == 0
    world.append(letter())
    return world


def test_show_prints_every_field(kept: World) -> None:
    result = kept.call("dead-letters", "show", ID)
    assert result.code == 0
    for part in ("nightly  unresolved", "day: monday", "main #1", "w-1", "Traceback (most recent call last):", ID):
        assert part in result.out
    shown = kept.call("dead-letters", "show", ID, "-o", "json").json
    assert (shown["job"], shown["resolved"], shown["replays"]) == (JOB, False, [])
    assert shown["letter"]["last_error"]["traceback"].endswith("boom")


def test_show_prints_replays_and_the_resolver(kept: World) -> None:
    made = kept.call(
        "dead-letters", "replay", ID, "--reason", "fixed", "--input", '{"day": "friday"}', "-o", "json"
    ).json
    kept.call("dead-letters", "resolve", ID, "--reason", "by hand")
    shown = kept.call("dead-letters", "show", ID, "-o", "json").json
    [replay] = shown["replays"]
    assert (replay["number"], replay["execution_id"], replay["reason"]) == (1, made["execution_id"], "fixed")
    assert replay["input"] == {"day": "friday"}
    assert (shown["resolved"], shown["resolution"]["reason"]) == (True, "by hand")
    page = kept.call("dead-letters", "show", ID).out
    assert made["execution_id"] in page
    assert "nightly  resolved" in page


def test_show_names_what_was_left_out(kept: World) -> None:
    kept.append(letter(OTHER).changed(input={}, input_left_out=True, attempts_left_out=12))
    shown = kept.call("dead-letters", "show", OTHER)
    assert "input: too large" in shown.out
    assert "12 earlier attempts" in shown.out
    assert shown.out.count(f"tocsin executions show {OTHER}") == 2


def test_show_prints_the_bytes_of_a_poison_message(world: World) -> None:
    refused = PoisonMessage.of(JOB, "planner-triggers", f"trigger.{JOB}", 7, b'{"input": 3}', "unreadable: no object")
    world.append(refused)
    result = world.call("dead-letters", "show", refused.id)
    assert (result.code, '{"input": 3}' in result.out, "unreadable: no object" in result.out) == (0, True, True)
    assert f"a message that planner-triggers could not process: trigger.{JOB}, stored as 7" in result.out


def test_replay_names_the_execution_and_refuses_a_second(kept: World) -> None:
    result = kept.call("dead-letters", "replay", ID)
    assert result.code == 0
    assert result.out.startswith(f"replayed {JOB} {ID}: execution ")
    again = kept.call("dead-letters", "replay", ID)
    assert again.code == 1
    assert (ID in again.err, "is still open" in again.err, "--again" in again.err) == (True, True, True)
    assert kept.call("dead-letters", "replay", ID, "--again").code == 0
    facts = [recorded.message for recorded in kept.recorded("dead-letter.*.*.replayed.>")]
    assert [fact.by.source for fact in facts if isinstance(fact, Replayed) and fact.by] == ["cli", "cli"]


def test_command_names_results_that_are_gone(world: World) -> None:
    path = world.jobs(f"jobs: [{{ name: {JOB}, dag: [{{ name: a, function: f }}, {{ name: b, function: f }}] }}]")
    assert world.call("jobs", "apply", "-f", path).code == 0
    world.append(letter())
    refused = world.call("dead-letters", "replay", ID, "--failed-only")
    assert (refused.code, "were archived" in refused.err) == (1, True)
    assert not world.recorded("dead-letter.*.*.replayed.>")


def test_replay_of_a_deleted_job_names_the_remedy(kept: World) -> None:
    kept.call("jobs", "delete", JOB, "--yes")
    result = kept.call("dead-letters", "replay", ID)
    assert result.code == 1
    assert all(part in result.err for part in (ID, repr(JOB), "Apply the job's definition first"))


def test_unknown_id_exits_3_and_prefixes_work(kept: World) -> None:
    assert kept.call("dead-letters", "show", OTHER).code == 3
    assert kept.call("dead-letters", "show", ID[:13]).code == 4
    record(kept, Stream.LOG)
    assert kept.call("dead-letters", "show", ID[:13], "-o", "json").json["id"] == ID
    kept.append(letter(OTHER))
    kept.do(record_more(kept))
    result = kept.call("dead-letters", "replay", ID[:13], "-o", "json")
    assert (result.code, result.failure[1]) == (2, "ambiguous-id")


async def record_more(world: World) -> None:
    async with world.history() as history:
        after = await history.offset(Stream.LOG)
        facts = await world.log.read("dead-letter.>", after=after)
        await history.record(Stream.LOG, facts, after=after, upto=facts[-1].sequence)


def test_resolve_takes_several_ids_and_reports_earlier_resolutions(kept: World) -> None:
    result = kept.call("dead-letters", "resolve", ID, OTHER)
    assert (result.code, result.out.strip()) == (3, f"resolved {ID} of {JOB}")
    assert result.err.strip() == f"error: no dead letter has the id {OTHER!r}"
    again = kept.call("dead-letters", "resolve", ID)
    assert (again.code, again.out.strip()) == (0, f"was resolved already: {ID} of {JOB}")


def test_replay_all_confirms_and_supports_a_dry_run(kept: World) -> None:
    kept.append(letter(OTHER))
    record(kept, Stream.LOG)
    refused = kept.call("dead-letters", "replay-all")
    assert refused.code == 2
    assert "--yes" in refused.err
    assert kept.call("dead-letters", "replay-all", "-o", "json").error["error_code"] == "confirmation-required"
    tried = kept.call("dead-letters", "replay-all", "--dry-run", "--error", "NO ROUTE")
    assert (tried.code, tried.out.splitlines()[-1]) == (0, "2 to replay")
    unknown = kept.call("dead-letters", "replay-all", "--job", "nosuch", "-o", "json")
    assert unknown.failure == (3, "job-not-found")
    of_job = kept.call("dead-letters", "replay-all", "--job", JOB, "-o", "json")
    assert of_job.error["error_code"] == "confirmation-required"
    assert kept.recorded("dead-letter.*.*.replayed.>") == []


def test_replay_all_replays_what_matches(kept: World) -> None:
    kept.append(letter(OTHER))
    record(kept, Stream.LOG)
    assert kept.call("dead-letters", "replay-all", "--yes", "--job", "other", "-o", "json").failure == (
        3,
        "job-not-found",
    )
    idle = kept.jobs("jobs: [{ name: idle, function: f }]")
    assert kept.call("jobs", "apply", "-f", idle).code == 0
    assert kept.call("dead-letters", "replay-all", "--yes", "--job", "idle", "-o", "json").json["replayed"] == []
    kept.call("dead-letters", "replay", ID)
    result = kept.call("dead-letters", "replay-all", "--yes", "--since", "2025-12-31", "-o", "json").json
    assert [one["id"] for one in result["replayed"]] == [OTHER]
    assert len(result["skipped"]) == 1


@pytest.mark.parametrize(("given", "often"), [("10/s", 10.0), ("60/m", 1.0), ("5", 5.0), ("36/h", 0.01)])
def test_a_rate_is_read(given: str, often: float) -> None:
    assert rate(given, "--rate") == often


@pytest.mark.parametrize("given", ["", "0/s", "fast", "10/d", "-1/s", "nan/s"])
def test_what_is_no_rate_is_refused(given: str) -> None:
    with pytest.raises(UsageError) as caught:
        rate(given, "--rate")
    assert caught.value.code == "invalid-rate"
    assert f"--rate is {given!r}" in str(caught.value)


def test_invalid_time_is_refused(kept: World) -> None:
    result = kept.call("dead-letters", "replay-all", "--dry-run", "--since", "yesterday", "-o", "json")
    assert result.failure == (2, "invalid-time")
    assert "--since is 'yesterday'" in result.error["message"]


def test_job_distinguishes_letters_with_one_id(kept: World) -> None:
    kept.append(letter().changed(job="other"))
    for command in ("show", "resolve", "replay"):
        refused = kept.call("dead-letters", command, ID, "-o", "json")
        assert (refused.code, refused.failure[1]) == (2 if command == "show" else refused.code, "ambiguous-id"), command
        assert "--job" in refused.err
    assert kept.call("dead-letters", "show", ID, "--job", "other", "-o", "json").json["job"] == "other"
    assert kept.call("dead-letters", "resolve", ID, "--job", "other").code == 0
    assert kept.call("dead-letters", "replay", ID, "--job", JOB, "-o", "json").json["job"] == JOB
    resolved = [recorded.message for recorded in kept.recorded("dead-letter.*.*.resolved")]
    assert [fact.job for fact in resolved if isinstance(fact, Resolved)] == ["other"]
