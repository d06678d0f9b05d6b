"""The bridge: executors outside see hip-62's envelope, and their answers become reports."""

import asyncio
import json
from dataclasses import replace

import pytest

from tests.domain.given import ID, JOB, NOON, admitted, plan
from tests.stages.world import World
from tocsin import subjects
from tocsin.domain import execution
from tocsin.domain.agent import AgentRecord
from tocsin.domain.definition import RetryPolicy
from tocsin.domain.events import (
    Cancelled,
    Completed,
    Dispatched,
    Envelope,
    Failed,
    MqCancel,
    PoisonMessage,
    QueuePaused,
    QueuePurged,
    QueueResumed,
    Report,
    Started,
    StepProgress,
)
from tocsin.domain.text import utc_text
from tocsin.engine import mq_tasks
from tocsin.engine.mq_tasks import Unneeded, UnneededTasks
from tocsin.stages.mq_bridge import PAUSED_S
from tocsin.subjects import Bucket, Stream


async def answered(world: World, body: object, execution_id: str = ID) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    world.log.receive(f"mq.scheduler.complete.{JOB}.{execution_id}", raw)
    await run(world)


async def run(world: World) -> None:
    await world.run(world.mq_bridge, world.dag_advancer, world.retrier)


async def envelopes(world: World) -> list[dict[str, object]]:
    return [recorded.message.document() for recorded in await world.log.read("mq.scheduled.>")]


async def test_task_is_published_in_the_hip_62_envelope(world: World) -> None:
    await world.given(admitted())
    await run(world)
    [envelope] = await envelopes(world)
    assert {key: envelope[key] for key in ("schema", "type", "source")} == {
        "schema": "hanzo.mq.v1",
        "type": "scheduler.execute",
        "source": "scheduler",
    }
    data = envelope["data"]
    assert isinstance(data, dict)
    assert (data["job_name"], data["execution_id"], data["function"], data["attempt"], data["timeout"]) == (
        JOB,
        ID,
        "f/main",
        1,
        30,
    )
    assert isinstance(data["timeout"], int)


async def test_fence_of_the_envelope_rises_with_each_attempt(world: World) -> None:
    await world.given(admitted(plan(retry=RetryPolicy(max_attempts=2))))
    await run(world)
    [first] = [recorded.message for recorded in await world.log.read("mq.scheduled.>")]
    await answered(world, {"status": "failed"})
    world.clock.advance(3600)
    await run(world)
    [second] = [recorded.message for recorded in await world.log.read("mq.scheduled.>")]
    assert isinstance(first, Envelope)
    assert isinstance(second, Envelope)
    assert (first.data.attempt, second.data.attempt) == (1, 2)
    assert 0 < first.data.fence < second.data.fence


DONE = {"status": "completed"}
OTHER = "0193a5b0-0000-7000-8000-00000000ffff"
COMPLETE = "mq.scheduler.complete"


def enveloped(**data: object) -> dict[str, object]:
    return {"schema": "hanzo.mq.v1", "id": "1", "type": "scheduler.complete", "source": "functions-7", "data": data}


@pytest.mark.parametrize(
    "body",
    [
        DONE,
        {"status": "COMPLETED"},
        {"status": "success", "result": 1},
        {**DONE, "result": "x" * 65_534},
        {**DONE, "step": "main", "attempt": 1},
        enveloped(**DONE),
        enveloped(**DONE, job_name=JOB, execution_id=ID),
    ],
)
async def test_recognized_success_completes(world: World, body: object) -> None:
    await world.given(admitted())
    await run(world)
    await answered(world, body)
    assert len(await world.stored(Completed)) == 1


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"status": "failed"}, "unknown"),
        ({"error": "boom"}, "error"),
        ({"status": "error", "error": {"type": "ValueError", "message": "boom"}}, "ValueError"),
        (enveloped(status="Failed", error="boom"), "error"),
        ({**DONE, "result": "x" * 65_535}, "invalid_result"),
    ],
)
async def test_answer_with_failure_fails(world: World, body: object, error: str) -> None:
    await world.given(admitted())
    await run(world)
    await answered(world, body)
    [failed] = await world.stored(Failed)
    assert failed.error is not None
    assert failed.error.type == error


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "mq-status-missing"),
        ({"state": "failed"}, "mq-status-missing"),
        ({"success": False, "exit_code": 1}, "mq-status-missing"),
        ({"status": "splendid"}, "mq-status-unknown"),
        (enveloped(status="splendid"), "mq-status-unknown"),
        ({**DONE, "execution_id": OTHER}, "mq-answer-contradictory"),
        ({**DONE, "job_name": "other"}, "mq-answer-contradictory"),
        ({**DONE, "step": "other"}, "mq-answer-misaddressed"),
        ({**DONE, "token": "\u00e9"}, "mq-token-wrong"),
        (b"completed", "undecodable-message"),
        (b'["completed"]', "undecodable-message"),
        (b'{"status":"completed","result":' + b"[" * 100_000, "undecodable-message"),
        (b'{"status":"completed","result":' + b"[" * 900 + b"]" * 900 + b"}", "undecodable-message"),
        (b"\xff\xfe", "undecodable-message"),
    ],
)
async def test_unknown_answer_is_never_an_outcome(world: World, body: object, code: str) -> None:
    await world.given(admitted())
    await run(world)
    await answered(world, body)
    [letter] = await world.stored(PoisonMessage)
    assert (letter.code, letter.job) == (code, JOB)
    assert await world.stored(Report) == []
    await answered(world, DONE)
    assert len(await world.stored(Completed)) == 1


async def test_answer_with_a_guessed_token_is_refused(world: World) -> None:
    await world.given(admitted())
    await run(world)
    await answered(world, {**DONE, "token": "guessed"})
    assert await world.stored(Completed) == []
    [letter] = await world.stored(PoisonMessage)
    assert letter.code == "mq-token-wrong"


async def test_an_answer_that_comes_twice_counts_once(world: World) -> None:
    await world.given(admitted())
    await run(world)
    await answered(world, DONE)
    await answered(world, DONE)
    await answered(world, {"status": "failed"})
    assert len(await world.stored(Report)) == 1
    assert await world.stored(PoisonMessage) == []


async def test_answer_before_the_hand_over_is_late(world: World) -> None:
    """An answer without an attempt is then to an earlier attempt: no executor can have the task of the current one."""
    await world.given(admitted())
    await world.run(world.dag_advancer)
    assert len(await world.stored(Dispatched)) == 1
    world.log.receive(f"mq.scheduler.complete.{JOB}.{ID}", json.dumps(DONE).encode())
    [completions] = [s for s in world.mq_bridge.subscriptions if s.durable == "mq-bridge-completions"]
    await world.run(replace(world.mq_bridge, subscriptions=(completions,)))
    await run(world)
    assert await world.stored(Completed) == []
    await answered(world, DONE)
    assert len(await world.stored(Completed)) == 1


async def test_executor_that_answers_is_listed(world: World) -> None:
    loops = [asyncio.create_task(loop()) for loop in world.mq_bridge.loops]
    await world.given(admitted())
    await run(world)
    await answered(world, enveloped(**DONE))
    await asyncio.sleep(0)
    await world.clock.run(5)
    for loop in loops:
        loop.cancel()
    await asyncio.gather(*loops, return_exceptions=True)
    [entry] = (await world.projections.entries(Bucket.AGENTS)).values()
    assert AgentRecord.model_validate_json(entry).name == "functions-7"


async def test_ambiguous_answer_is_refused_with_the_step_names(world: World) -> None:
    await world.given(admitted(plan({"a": (), "b": ()})))
    await run(world)
    await answered(world, DONE)
    [letter] = await world.stored(PoisonMessage)
    assert letter.code == "mq-answer-ambiguous"
    assert letter.reason.endswith("in flight: a, b")
    await answered(world, {**DONE, "step": "a"})
    await answered(world, {**DONE, "step": "b"})
    assert len(await world.stored(Completed)) == 1


async def test_name_of_the_executor_is_reported(world: World) -> None:
    await world.given(admitted())
    await run(world)
    await answered(world, enveloped(**DONE))
    [report] = await world.stored(Report)
    assert report.worker == "functions-7"


@pytest.mark.parametrize(
    ("subject", "names"),
    [
        (f"{COMPLETE}.{ID}", {"job_name": JOB}),
        (f"{COMPLETE}.{ID}", {"job_name": JOB, "execution_id": ID}),
        (f"{COMPLETE}.{JOB}", {"execution_id": ID}),
        (f"{COMPLETE}.{JOB}", {"job_name": JOB, "execution_id": ID}),
        (f"{COMPLETE}.functions", {"job_name": JOB, "execution_id": ID}),
        (f"{COMPLETE}.>", {"job_name": JOB, "execution_id": ID}),
        (f"{COMPLETE}.{JOB}.{ID}", {"job_name": JOB, "execution_id": ID}),
    ],
)
async def test_ids_are_taken_from_the_body_too(world: World, subject: str, names: dict[str, str]) -> None:
    await world.given(admitted())
    await run(world)
    world.log.receive(subject, json.dumps(enveloped(**DONE, **names)).encode())
    await run(world)
    assert len(await world.stored(Completed)) == 1


@pytest.mark.parametrize("job", ["db.backup", "a.b.c"])
async def test_subject_may_be_the_name_of_the_job(world: World, job: str) -> None:
    await world.given(admitted().changed(job=job))
    await run(world)
    body = {**DONE, "job_name": job, "execution_id": ID}
    world.log.receive(f"{COMPLETE}.{job}", json.dumps(body).encode())
    await run(world)
    assert [end.job for end in await world.stored(Completed)] == [job]


@pytest.mark.parametrize(
    ("subject", "names"),
    [
        (f"{COMPLETE}.{ID}", {}),
        (f"{COMPLETE}.{JOB}", {"job_name": JOB}),
        (f"{COMPLETE}.{JOB}.{OTHER}", {}),
        (f"{COMPLETE}.{JOB}.{OTHER}", {"job_name": JOB, "execution_id": OTHER}),
        (f"{COMPLETE}.*.*", {}),
        (f"{COMPLETE}.>", {"job_name": "*", "execution_id": "*"}),
        (f"{COMPLETE}.{JOB}", {"execution_id": f"{ID}.>"}),
        (f"{COMPLETE}.{ID}", {"job_name": "a job"}),
        (f"{COMPLETE}.{ID}", {"job_name": "Upper"}),
        (f"{COMPLETE}.{ID}", {"job_name": "x" * 300}),
    ],
)
async def test_misaddressed_answer_is_a_dead_letter(world: World, subject: str, names: dict[str, str]) -> None:
    await world.given(admitted())
    await run(world)
    world.log.receive(subject, json.dumps({**DONE, **names}).encode())
    await run(world)
    [letter] = await world.stored(PoisonMessage)
    assert letter.code == "mq-answer-misaddressed"
    assert await world.stored(Report) == []
    assert world.pending == 0


async def test_answer_to_a_native_task_changes_nothing(world: World) -> None:
    task = plan()
    [step] = task.steps
    await world.given(admitted(task.changed(steps=(step.changed(queue="native"),))))
    await run(world)
    await answered(world, DONE)
    assert await world.stored(Report) == []
    assert await world.stored(PoisonMessage) == []


@pytest.mark.parametrize(("seconds", "written"), [(300.0, b'"timeout":300,'), (0.5, b'"timeout":1,')])
async def test_timeout_is_a_whole_number(world: World, seconds: float, written: bytes) -> None:
    task = plan()
    steps = tuple(step.changed(timeout=seconds) for step in task.steps)
    await world.given(admitted(task.changed(steps=steps)))
    await run(world)
    [recorded] = await world.log.read("mq.scheduled.>")
    assert written in recorded.message.encode()


async def test_hand_over_is_a_claim(world: World) -> None:
    await world.given(admitted())
    await run(world)
    [started] = await world.stored(Started)
    assert (started.step, started.attempt, started.delivery, started.worker) == ("main", 1, 1, "mq-bridge")
    await answered(world, DONE)
    assert len(await world.stored(Completed)) == 1


async def test_task_of_a_cancelled_execution_stays(world: World) -> None:
    await world.given(admitted())
    await world.run(world.dag_advancer)
    await world.ask_to_cancel(JOB, ID)
    await world.run(world.dag_advancer)
    await run(world)
    assert await envelopes(world) == []
    assert await world.stored(Started) == []
    assert world.pending == 0


async def test_hand_over_is_finished_after_a_crash(world: World) -> None:
    await world.given(admitted())
    await world.run(world.dag_advancer)
    [task] = await world.recorded(Dispatched)
    claimed = execution.claim(
        execution.fold(await world.log.load(subjects.execution(JOB, ID))),
        step="main",
        attempt=1,
        delivery=1,
        task=task.sequence,
        worker="mq-bridge",
    )
    assert isinstance(claimed, Started)
    await world.given(claimed)
    await run(world)
    assert len(await envelopes(world)) == 1


async def test_redelivered_task_is_handed_over_once(world: World) -> None:
    await world.given(admitted())
    await run(world)
    await world.redeliver(world.mq_bridge)
    assert len(await envelopes(world)) == 1
    assert len(await world.stored(Started)) == 1


async def test_executor_may_tell_that_it_began(world: World) -> None:
    await world.given(admitted())
    await run(world)
    for body in ({"status": "STARTED", "worker": "functions-7"}, {"status": "progress", "worker": "functions-8"}):
        await answered(world, body)
    begun = [(started.delivery, started.worker) for started in await world.stored(Started)]
    assert begun == [(1, "mq-bridge"), (2, "functions-7")]
    assert await world.stored(Report) == []
    await answered(world, {"status": "failed"})
    assert len(await world.stored(Failed)) == 1


async def test_progress_of_an_executor_is_shown(world: World) -> None:
    await world.given(admitted())
    await run(world)
    for body, shown in (
        ({"status": "progress", "progress": 0.4, "message": "loading\x1b[2J"}, (0.4, "loading\\x1b[2J")),
        (enveloped(status="running", progress=7), (1.0, "")),
        ({"status": "completed", "progress": 0.1}, (1.0, "")),
        ({"status": "progress", "progress": 0.2}, (1.0, "")),
    ):
        await answered(world, body)
        [recorded] = await world.log.read("progress.>")
        assert isinstance(recorded.message, StepProgress)
        assert (recorded.message.fraction, recorded.message.message) == shown
    assert len(await world.stored(Completed)) == 1


@pytest.mark.parametrize("progress", ["40 %", True, {}, [0.4]])
async def test_progress_that_is_no_number_is_refused(world: World, progress: object) -> None:
    await world.given(admitted())
    await run(world)
    await answered(world, {"status": "progress", "progress": progress})
    assert [letter.code for letter in await world.stored(PoisonMessage)] == ["mq-answer-invalid"]
    assert await world.log.read("progress.>") == []


async def test_task_has_labels_and_metadata_of_its_job(world: World) -> None:
    tagged = plan().changed(tags=("eu",), meta={"team": "billing"})
    await world.given(admitted(tagged))
    await run(world)
    [envelope] = await envelopes(world)
    data = envelope["data"]
    assert isinstance(data, dict)
    assert (data["queue"], data["tags"]) == ("default", ["eu"])
    assert data["metadata"] == {"team": "billing", "cron_name": JOB, "cron_triggered_at": utc_text(NOON)}


async def test_beginning_after_the_end_changes_nothing(world: World) -> None:
    await world.given(admitted())
    await run(world)
    await answered(world, DONE)
    await answered(world, {"status": "started"})
    assert len(await world.stored(Started)) == 1
    assert await world.stored(PoisonMessage) == []


async def remove_tasks(world: World) -> None:
    for loop in world.mq_bridge.loops:
        removing = asyncio.create_task(loop())
        await asyncio.sleep(0)
        await world.clock.run(2)
        removing.cancel()
        await asyncio.gather(removing, return_exceptions=True)


async def test_task_leaves_the_queue_after_its_time(world: World) -> None:
    await world.given(admitted())
    await run(world)
    await world.clock.run(89)
    assert len(await envelopes(world)) == 1
    await world.clock.run(2)
    assert await envelopes(world) == []


async def test_cancelled_execution_leaves_the_queue(world: World) -> None:
    other = admitted().changed(execution_id=OTHER)
    await world.given(admitted(), other)
    await run(world)
    await world.ask_to_cancel(JOB, ID, reason="wrong input")
    await run(world)
    [notice] = await world.log.read(f"mq.scheduler.cancel.{JOB}.{ID}")
    assert isinstance(notice.message, MqCancel)
    data = notice.message.data
    assert (data.job_name, data.execution_id, data.steps) == (JOB, ID, ("main",))
    assert (data.status, data.reason) == ("cancelled", "wrong input")
    await remove_tasks(world)
    [left] = await world.log.read("mq.scheduled.>")
    assert isinstance(left.message, Envelope)
    assert left.message.data.execution_id == OTHER
    await world.clock.run(400)
    assert await world.log.read("mq.scheduler.cancel.>") == []


async def test_task_behind_others_leaves_the_queue(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mq_tasks, "PAGE", 1)
    executions = [ID[:-1] + digit for digit in "123"]
    await world.given(*(admitted().changed(execution_id=execution_id) for execution_id in executions))
    await run(world)
    tasks = UnneededTasks(world.log, world.clock)
    for execution_id in executions[1:]:
        tasks.take(Unneeded(JOB, execution_id))
    await tasks.run_once()
    left = [recorded.message for recorded in await world.log.read("mq.scheduled.>")]
    assert [envelope.data.execution_id for envelope in left if isinstance(envelope, Envelope)] == executions[:1]


async def test_unreadable_task_keeps_no_other_in_the_queue(world: World) -> None:
    """A page ends before it, and is no last page."""
    await world.given(admitted())
    await run(world)
    world.log.receive(f"mq.scheduled.{JOB}", b"from a newer version")
    await world.given(admitted().changed(execution_id=OTHER))
    await run(world)
    tasks = UnneededTasks(world.log, world.clock)
    for execution_id in (ID, OTHER):
        tasks.take(Unneeded(JOB, execution_id))
    await tasks.run_once()
    assert [entry.body for entry in world.log.stream(Stream.MQ).entries_after(0)] == [b"from a newer version"]


@pytest.mark.parametrize("status", ["completed", "failed"])
async def test_answered_execution_is_not_announced(world: World, status: str) -> None:
    await world.given(admitted())
    await run(world)
    await answered(world, {"status": status})
    await run(world)
    assert await world.log.read("mq.scheduler.cancel.>") == []


async def test_no_executor_uses_up_a_tasks_id(world: World) -> None:
    """Executors publish into the stream of tasks, and ids are one space for all publishers of a stream."""
    await world.given(admitted())
    await world.run(world.dag_advancer)
    [task] = await world.log.read("execution.*.*.dispatched.>")
    for guess in (f"{ID}:main:1:{task.sequence}", f"{ID}:main:1", ID):
        world.log.receive(f"mq.scheduler.complete.other.{OTHER}", b"{}", message_id=guess)
    await run(world)
    assert len(await envelopes(world)) == 1


async def test_no_executor_uses_up_a_notices_id(world: World) -> None:
    await world.given(admitted())
    await run(world)
    world.log.receive(f"mq.scheduler.complete.other.{OTHER}", b"{}", message_id=f"cancel_{ID}")
    await world.ask_to_cancel(JOB, ID)
    await run(world)
    assert len(await world.log.read("mq.scheduler.cancel.>")) == 1


async def test_notice_is_stored_once(world: World) -> None:
    await world.given(admitted())
    await run(world)
    await world.ask_to_cancel(JOB, ID)
    await run(world)
    await world.redeliver(world.mq_bridge)
    assert len(await world.log.read("mq.scheduler.cancel.>")) == 1


async def test_builtin_function_fails_instead_of_going_out(world: World) -> None:
    """The queue got its transport after the job was registered."""
    [step] = plan().steps
    command = step.changed(function="tocsin.command", builtin={"argv": ["df"]})
    await world.given(admitted(plan().changed(steps=(command,))))
    await run(world)
    await world.redeliver(world.mq_bridge)
    await run(world)
    assert not await envelopes(world)
    [end] = await world.stored(Failed)
    assert end.error is not None
    assert (end.error.type, end.attempt) == ("builtin_not_supported", 1)
    assert "tocsin.command" in end.error.message


@pytest.mark.parametrize(
    "changes",
    [
        {"input": {"a": [{"b": "x${env:PASSWORD}"}]}},
        {"input": {"a": "${file:/run/key}"}},
        {"args": (1, "${env:PASSWORD}")},
    ],
)
async def test_secret_fails_its_task_instead_of_going_out(
    world: World, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue got its transport after the job was registered."""
    monkeypatch.setenv("PASSWORD", "sesame-7")
    [step] = plan().steps
    await world.given(admitted(plan().changed(steps=(step.changed(**changes),))))
    await run(world)
    await world.redeliver(world.mq_bridge)
    await run(world)
    assert not await envelopes(world)
    [end] = await world.stored(Failed)
    assert end.error is not None
    assert (end.error.type, end.attempt) == ("secret_unresolved", 1)
    assert "sesame-7" not in str(end.error)


async def test_literal_of_a_reference_goes_out_as_text(world: World) -> None:
    [step] = plan().steps
    texts = {"input": {"a": ["$${env:PASSWORD}"]}, "args": ("$${x}",)}
    await world.given(admitted(plan().changed(steps=(step.changed(**texts),))))
    await run(world)
    [envelope] = await envelopes(world)
    data = envelope["data"]
    assert isinstance(data, dict)
    assert (data["input"], data["args"]) == ({"a": ["${env:PASSWORD}"]}, ["${x}"])


async def test_paused_task_is_handed_over_after_the_resume(world: World) -> None:
    await world.given(QueuePaused(queue="default"), admitted())
    await run(world)
    assert not await envelopes(world)
    assert not await world.stored(Started)
    await world.given(QueueResumed(queue="default"))
    world.clock.advance(PAUSED_S)
    await run(world)
    assert len(await envelopes(world)) == 1


async def test_later_pause_holds_for_the_next_task(world: World) -> None:
    await world.given(admitted())
    await run(world)
    await world.given(QueuePaused(queue="default"))
    await world.given(admitted().changed(execution_id=OTHER))
    await run(world)
    assert len(await envelopes(world)) == 1


async def test_claimed_task_is_handed_over_during_a_pause(world: World) -> None:
    await world.given(admitted())
    await world.run(world.dag_advancer)
    [task] = await world.recorded(Dispatched)
    await world.given(
        Started(job=JOB, execution_id=ID, step="main", attempt=1, delivery=1, worker="mq-bridge"),
        QueuePaused(queue="default"),
        QueuePurged(queue="default", upto=task.sequence),
    )
    await run(world)
    assert len(await envelopes(world)) == 1
    assert not await world.stored(Cancelled)


async def test_purge_cancels_what_was_not_handed_over(world: World) -> None:
    await world.given(QueuePaused(queue="default"), admitted())
    await run(world)
    await world.given(QueuePurged(queue="default", upto=await world.log.end(Stream.LOG)))
    await world.given(admitted().changed(execution_id=OTHER))
    world.clock.advance(PAUSED_S)
    await run(world)
    await world.redeliver(world.mq_bridge)
    [end] = await world.stored(Cancelled)
    assert (end.execution_id, end.reason) == (ID, "queue default purged")
    assert not await envelopes(world)
