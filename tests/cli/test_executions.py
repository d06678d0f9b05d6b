"""`tocsin executions` and `dead-letters`: from the log for one, from the history for many."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from tests.cli.conftest import World
from tests.domain.given import ID, JOB, KEY, admitted, plan
from tocsin.domain import ids
from tocsin.domain.events import (
    Advanced,
    Cancelled,
    Completed,
    DeadLettered,
    Dispatched,
    EventReference,
    Failed,
    Failure,
    Message,
    PastHoldUp,
    Planned,
    Recorded,
    RetryScheduled,
    Started,
    validated,
)
from tocsin.subjects import Stream
from tocsin.testing import START

ERROR = Failure(type="ConnectionError", message="no route\nto the host")


def dispatched(step: str, attempt: int) -> Dispatched:
    return Dispatched(
        job=JOB,
        execution_id=ID,
        step=step,
        attempt=attempt,
        max_attempts=2,
        function="f",
        timeout=30,
        scheduled_time=START,
        trigger="cron",
        token=ids.report_token(KEY, ID, step, attempt),
    )


def started(step: str, attempt: int) -> Started:
    return Started(job=JOB, execution_id=ID, step=step, attempt=attempt, delivery=1, worker="w-1")


def retry(step: str, error: Failure, *, at: float) -> RetryScheduled:
    later = START + timedelta(seconds=at)
    return RetryScheduled(job=JOB, execution_id=ID, step=step, attempt=1, error=error, delay=1, next_attempt_at=later)


def failure_of_load(error: Failure) -> Iterator[Message]:
    """The events of the step `load` after the start of its first attempt, before the step `clean`."""
    yield from (retry("load", error, at=8), dispatched("load", 2), started("load", 2))
    end = {"step": "load", "attempt": 2, "error": error, "reason": "attempts", "dead_letter": True}
    names = {"job": JOB, "execution_id": ID, "scheduled_time": START, "trigger": "cron"}
    yield validated(Failed, {**names, **end, "cancelled_steps": ("clean",)})


@pytest.fixture
def failed(world: World) -> World:
    world.append(
        admitted(plan({"extract": (), "load": ("extract",), "clean": ("load",)})),
        dispatched("extract", 1),
        started("extract", 1),
        Advanced(job=JOB, execution_id=ID, step="extract", attempt=1),
        dispatched("load", 1),
        started("load", 1),
        *failure_of_load(ERROR),
    )
    return world


def test_show_folds_the_execution_from_the_log(failed: World) -> None:
    result = failed.call("executions", "show", ID)
    assert result.code == 0
    assert "nightly  failed, took 7.0s" in result.out
    assert "load #2" in result.out
    assert "ConnectionError: no route" in result.out
    assert "cancelled clean" in result.out


def test_show_is_json_with_attempts_steps_and_facts(failed: World) -> None:
    shown = failed.call("executions", "show", ID, "-o", "json").json
    assert (shown["job"], shown["status"], shown["duration_ms"]) == (JOB, "failed", 7_000)
    lasted = datetime.fromisoformat(shown["ended_at"]) - datetime.fromisoformat(shown["started_at"])
    assert lasted == timedelta(milliseconds=shown["duration_ms"])  # as in `executions list` and the HTTP API
    assert {name: step["status"] for name, step in shown["steps"].items()} == {
        "extract": "completed",
        "load": "failed",
        "clean": "cancelled",
    }
    assert [(one["step"], one["attempt"]) for one in shown["attempts"]] == [("extract", 1), ("load", 1), ("load", 2)]
    assert shown["attempts"][1]["error"]["type"] == "ConnectionError"
    assert shown["facts"][0]["fact"]["type"] == "admitted"
    assert shown["facts"][0]["time"] == "2026-01-01T00:00:00Z"


def test_unknown_execution_is_not_found(world: World) -> None:
    result = world.call("executions", "show", ID, "-o", "json")
    assert result.failure == (3, "not-found")


@pytest.mark.parametrize("id_", ["*", "a.b", ">", "a b"])
def test_what_cannot_be_an_id_is_no_filter(id_: str, failed: World) -> None:
    assert failed.call("executions", "show", id_).code == 2


def record(world: World, stream: Stream) -> None:
    async def _record() -> None:
        facts = await world.log.read("execution.>" if stream is Stream.LOG else "ledger.>")
        facts += await world.log.read("dead-letter.>")
        async with world.history() as history:
            await history.record(stream, facts, after=0, upto=facts[-1].sequence)

    world.do(_record())


def test_list_reads_the_history(failed: World) -> None:
    record(failed, Stream.LOG)
    result = failed.call("executions", "list", "--job", JOB, "--status", "failed")
    assert ID in result.out
    assert "ConnectionError" in result.out
    (row,) = failed.call("executions", "list", "-o", "json").json
    assert (row["status"], row["attempt"]) == ("failed", 2)
    assert failed.call("executions", "list", "--status", "completed", "-o", "json").json == []


def test_missing_history_is_reported_and_not_created(failed: World) -> None:
    for command in ("executions", "dead-letters"):
        result = failed.call(command, "list")
        assert (result.code, result.out) == (4, "")
        assert result.err.startswith(
            f"error: no history is kept in {failed.folder}/history.db: `tocsin dev` keeps it in"
        )
        assert "--data-dir FOLDER, TOCSIN_DATA_DIR or TOCSIN_DATABASE_URL" in result.err
    assert not (failed.folder / "history.db").exists()


def test_history_of_another_installation_is_refused(failed: World) -> None:
    async def open_it() -> None:
        async with failed.history():
            pass

    failed.do(open_it())
    result = failed.call("executions", "list")
    assert (result.code, result.err.startswith("error: nothing of this installation is recorded in ")) == (4, True)


def test_a_history_of_nothing_is_an_empty_list(world: World) -> None:
    async def open_it() -> None:
        async with world.history():
            pass

    world.do(open_it())
    assert world.call("executions", "list").out.strip() == "no executions"
    assert world.call("dead-letters", "list").out.strip() == "no dead letters"


def test_unknown_status_is_a_usage_error(world: World) -> None:
    assert world.call("executions", "list", "--status", "done").code == 2


def test_dead_letters_are_listed(failed: World) -> None:
    letter = DeadLettered(
        job=JOB,
        id=ID,
        execution_id=ID,
        scheduled_time=START,
        trigger="cron",
        attempts=(),
        last_error=ERROR,
        first_attempt=START,
        last_attempt=START,
    )
    failed.append(letter)
    record(failed, Stream.LOG)
    assert ID in failed.call("dead-letters", "list", "--unresolved").out
    (row,) = failed.call("dead-letters", "list", "-o", "json").json
    assert (row["job_name"], row["resolved"]) == (JOB, False)


@pytest.fixture
def waiting(world: World) -> World:
    world.append(admitted(plan({"extract": (), "load": ("extract",)})), dispatched("extract", 1), started("extract", 1))
    return world


def test_cancel_ends_it_and_says_so(waiting: World) -> None:
    result = waiting.call("executions", "cancel", ID, "--reason", "wrong day")
    assert (result.code, result.out.strip()) == (0, f"cancelled {ID} of {JOB}")
    (fact,) = waiting.recorded("execution.*.*.cancelled")
    assert isinstance(fact.message, Cancelled)
    assert fact.message.reason == "wrong day"
    assert fact.message.by is not None
    assert fact.message.by.source == "cli"
    shown = waiting.call("executions", "show", ID, "-o", "json").json
    assert (shown["status"], {step["status"] for step in shown["steps"].values()}) == ("cancelled", {"cancelled"})


def test_cancelling_a_finished_execution_reports_its_end(failed: World) -> None:
    result = failed.call("executions", "cancel", ID)
    assert (result.code, result.out.strip()) == (0, f"was already failed: {ID} of {JOB}")
    assert failed.call("executions", "cancel", ID, "-o", "json").json == [
        {"job": JOB, "execution_id": ID, "status": "failed", "changed": False}
    ]


def test_of_several_those_that_exist_are_cancelled(waiting: World) -> None:
    nobody = f"{ID[:-1]}9"
    result = waiting.call("executions", "cancel", nobody, ID)
    assert (result.code, result.out.strip()) == (3, f"cancelled {ID} of {JOB}")
    assert result.err.strip() == f"error: no execution has the id {nobody!r}"


def test_prefix_of_an_id_works_through_the_history(waiting: World) -> None:
    result = waiting.call("executions", "cancel", ID[:-2], "-o", "json")
    assert result.failure == (4, "history-not-found")
    record(waiting, Stream.LOG)
    assert waiting.call("executions", "show", ID[:8], "-o", "json").json["execution_id"] == ID
    result = waiting.call("executions", "show", ID[:3])
    assert (result.code, repr(ID[:3]) in result.err, "at least 4 characters" in result.err) == (2, True, True)
    result = waiting.call("executions", "cancel", "0200", "-o", "json")
    assert result.failure == (3, "not-found")
    assert waiting.call("executions", "cancel", ID[:-2]).code == 0


def test_characters_that_begin_several_ids_name_them(waiting: World) -> None:
    other = f"{ID[:-1]}9"
    waiting.append(admitted().changed(execution_id=other))
    record(waiting, Stream.LOG)
    result = waiting.call("executions", "show", ID[:-1], "-o", "json")
    assert result.failure == (2, "ambiguous-id")
    assert all(one in result.error["message"] for one in (ID, other))


def test_a_list_says_how_to_go_on(failed: World) -> None:
    others = [f"0193a5b0-0000-7000-8000-00000000001{n}" for n in range(4)]
    for n, other in enumerate(others):
        at = START + timedelta(minutes=n + 1)
        failed.append(admitted().changed(execution_id=other, scheduled_time=at))
    record(failed, Stream.LOG)

    first = failed.call("executions", "list", "--limit", "2", "-o", "json")
    cursor = first.err.strip().removeprefix("there are more: --cursor ").removesuffix(", or --all")
    second = failed.call("executions", "list", "--limit", "2", "--cursor", cursor, "-o", "json")
    last = failed.call("executions", "list", "--cursor", second.err.split()[4].rstrip(","), "--all", "-o", "json")
    whole = failed.call("executions", "list", "--all", "-o", "json")
    assert [row["execution_id"] for result in (first, second, last) for row in result.json] == [ID, *reversed(others)]
    assert [row["execution_id"] for row in whole.json] == [ID, *reversed(others)]
    assert last.err == whole.err == ""


def test_a_list_is_narrowed_down_and_sorted(failed: World) -> None:
    record(failed, Stream.LOG)

    def ids(*options: str) -> list[str]:
        return [row["execution_id"] for row in failed.call("executions", "list", *options, "-o", "json").json]

    day = START.date().isoformat()
    assert ids("--error", "no route", "--sort", "longest", "--trigger", "cron") == [ID]
    assert ids("--since", day, "--until", "now", "--status", "failed") == [ID]
    assert ids("--tag", "none") == ids("--until", "2020-01-01") == ids("--trigger", "manual") == []


@pytest.mark.parametrize("command", ["executions", "dead-letters"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--cursor", "x"), '`cursor` is "x": not a cursor'),
        (("--since", "2026-01-02", "--until", "2026-01-01"), "must be later than `since`"),
        (("--since", "soon"), "--since is 'soon': write an ISO date and time"),
        (("--all", "--limit", "3"), "--all and --limit exclude each other"),
    ],
)
def test_invalid_list_options_are_usage_errors(
    world: World, command: str, options: tuple[str, ...], message: str
) -> None:
    result = world.call(command, "list", *options)
    assert (result.code, message in result.err) == (2, True)


async def _create_history(world: World) -> None:
    async with world.history():
        pass


@pytest.mark.parametrize("command", ["executions", "dead-letters"])
def test_list_refuses_a_job_that_never_was(world: World, command: str) -> None:
    path = world.jobs("name: nightly\nfunction: f\n")
    assert world.call("jobs", "apply", "-f", path).code == 0
    world.do(_create_history(world))
    assert world.call(command, "list", "--job", "nightly").code == 0
    refused = world.call(command, "list", "--job", "nigthly", "-o", "json")
    assert (refused.code, refused.error["error_code"]) == (3, "job-not-found")
    assert "'nightly'" in refused.error["message"]


def test_list_knows_a_deleted_job_with_history(world: World) -> None:
    async def record() -> None:
        fact = Recorded(admitted(), "", 1, START)
        async with world.history() as history:
            await history.record(Stream.LOG, [fact], after=0, upto=1)

    world.do(record())
    assert len(world.call("executions", "list", "--job", JOB, "-o", "json").json) == 1
    assert world.call("executions", "list", "--job", JOB, "--status", "failed").code == 0
    assert world.call("dead-letters", "list", "--job", JOB).code == 0


def test_page_shows_what_each_step_ran(failed: World) -> None:
    shown = failed.call("-o", "json", "executions", "show", ID).json
    extract = shown["steps"]["extract"]
    assert (extract["queue"], extract["function"], extract["result"]) == ("default", "f/extract", None)
    assert extract["duration_ms"] is not None
    assert shown["waits_for"] is None
    page = failed.call("executions", "show", ID).out
    assert all(heading in page for heading in ("QUEUE", "FUNCTION", "TOOK"))


def test_past_hold_ups_of_an_attempt_are_shown(world: World) -> None:
    parts = PastHoldUp(cause="key_limit", seconds=4.25), PastHoldUp(cause="queue_paused", seconds=75)
    late = started("extract", 1).changed(held_up=parts)
    world.append(admitted(plan({"extract": ()})), dispatched("extract", 1), late)
    [attempt] = world.call("-o", "json", "executions", "show", ID).json["attempts"]
    assert attempt["held_up"] == [
        {"cause": "key_limit", "seconds": 4.25},
        {"cause": "queue_paused", "seconds": 75.0},
    ]
    page = world.call("executions", "show", ID).out
    held_up = "4.2s by the concurrency limit of its key, 1m15s by the pause of its queue"
    assert f"extract #1 was held up {held_up}" in page
    assert f"extract #1 by w-1, held up {held_up}" in page


def test_pending_execution_shows_what_it_waits_for(world: World) -> None:
    waiting = plan({"extract": ()})
    world.append(Planned(job=JOB, execution_id=ID, scheduled_time=START, trigger="cron", plan=waiting))
    shown = world.call("-o", "json", "executions", "show", ID).json
    assert (shown["status"], shown["waits_for"], shown["started_at"]) == ("pending", "lock", None)
    assert "waits for the lock of its job" in world.call("executions", "show", ID).out


def test_dispatched_execution_waits_for_worker(world: World) -> None:
    world.append(admitted(plan({"extract": ()})), dispatched("extract", 1))
    shown = world.call("-o", "json", "executions", "show", ID).json
    assert (shown["status"], shown["waits_for"], shown["started_at"]) == ("pending", "worker", None)


def test_delayed_execution_waits_for_its_end(world: World) -> None:
    delay = retry("extract", ERROR, at=9)
    world.append(admitted(plan({"extract": ()})), dispatched("extract", 1), started("extract", 1), delay)
    assert world.call("-o", "json", "executions", "show", ID).json["waits_for"] == "delay"


def test_input_and_result_are_shown(world: World) -> None:
    done = Completed(
        job=JOB, execution_id=ID, scheduled_time=START, trigger="cron", step="extract", attempt=1, result={"rows": 3}
    )
    given = plan({"extract": ()}).changed(input={"date": "2026-01-01"})
    world.append(admitted(given), dispatched("extract", 1), started("extract", 1), done)
    page = world.call("executions", "show", ID).out
    assert 'extract input {"date": "2026-01-01"}' in page
    assert 'extract result {"rows": 3}' in page


def test_event_that_started_an_execution_is_shown(world: World) -> None:
    event = EventReference(stream="ORDERS", sequence=1042, subject="orders.new\x1b[31m", time=START, hops=2)
    world.append(admitted().changed(trigger="event", event=event))
    shown = world.call("executions", "show", ID, "-o", "json").json
    assert (shown["event"]["stream"], shown["event"]["sequence"], shown["event"]["hops"]) == ("ORDERS", 1042, 2)
    page = world.call("executions", "show", ID).out
    assert "started by the event orders.new" in page
    assert "1042 of ORDERS" in page
    assert "\x1b[31m" not in page


def test_execution_without_an_event_shows_none(failed: World) -> None:
    assert failed.call("executions", "show", ID, "-o", "json").json["event"] is None
    assert "started by the event" not in failed.call("executions", "show", ID).out
