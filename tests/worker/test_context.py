"""The context and the arguments that a handler receives."""

import asyncio
import os
from collections.abc import Callable, MutableMapping
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from pydantic import JsonValue

from tests.domain.given import ID, JOB, KEY, NOON, admitted
from tests.worker.given import FUNCTION, WORKER, Bench
from tocsin import Context, Worker, subjects
from tocsin.domain import execution, execution_plan
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Due, Failure, HeartbeatDetails, OutputLine, occurrence_meta
from tocsin.testing import settle
from tocsin.worker.held_tasks import HeldTask

SECRET = "s3cr3t-pässwörd"  # noqa: S105 - a test's


async def failure_of(bench: Bench) -> Failure:
    error = (await bench.report()).error
    assert error is not None
    return error


async def test_context_describes_the_attempt(bench: Bench) -> None:
    seen: list[Context] = []
    await bench.run(lambda context: seen.append(context), input={"a": 1}, args=["x"], timeout=90)  # noqa: PLW0108
    [context] = seen
    assert (context.execution_id, context.job, context.step, context.function) == (ID, JOB, "main", FUNCTION)
    assert (context.attempt, context.max_attempts, context.delivery) == (1, 3, 1)
    assert (context.input, context.args, context.upstream) == ({"a": 1}, ("x",), {})
    assert (context.scheduled_time, context.trigger, context.worker) == (NOON, "cron", WORKER)
    assert (context.queue, context.meta, context.tags) == ("default", occurrence_meta(JOB, NOON), ())
    assert (context.cron_name, context.cron_triggered_at) == (JOB, NOON)
    assert context.deadline == NOON + timedelta(seconds=90)
    assert not context.cancelled
    assert not context.shutting_down
    assert vars(context).keys() == {field.name for field in fields(Context)}
    assert Context(**vars(context)) == context


class Fenced:
    """A system that refuses fences below the highest that it has seen."""

    def __init__(self) -> None:
        self.highest = 0
        self.written: list[str] = []

    def write(self, value: str, fence: int) -> None:
        if fence >= self.highest:
            self.highest = fence
            self.written.append(value)


@pytest.mark.parametrize("fence", [7, None])
async def test_frozen_worker_has_a_lower_fence(fence: int | None, bench: Bench) -> None:
    """Both run the first attempt. The lock, if there is one, has the same number for both."""
    target, goes_on = Fenced(), asyncio.Event()

    async def handle(context: Context) -> None:
        if context.delivery == 1:
            target.write("first", context.fence)
            await goes_on.wait()
            target.write("first again", context.fence)
        else:
            target.write("second", context.fence)

    bench.handlers.add(FUNCTION, handle)
    await bench.given_task(lock=fence)
    assigned = await bench.assigned()
    _, frozen = bench.running(assigned)
    await settle()
    _, successor = bench.running(await bench.again(assigned))
    await successor
    goes_on.set()
    await frozen
    assert target.written == ["first", "second"]
    assert [target.highest] == [sequence for sequence, claim in await bench.claims() if claim.delivery == 2]


async def test_context_describes_recovery(bench: Bench) -> None:
    seen: list[Context] = []
    bench.handlers.add(FUNCTION, lambda context: seen.append(context))  # noqa: PLW0108
    start = admitted().changed(recovered_at=NOON + timedelta(minutes=7))
    await bench.given(start)
    state = execution.fold(await bench.log.load(subjects.scope_of(start)))
    [task] = execution.dispatch(state, key=KEY)
    await bench.given(task.changed(function=FUNCTION))
    await bench.executor.run(HeldTask(await bench.assigned()))
    [context] = seen
    assert (context.is_recovery, context.original_scheduled_time) == (True, NOON)
    assert context.recovery_attempt_time == NOON + timedelta(minutes=7)


@pytest.mark.parametrize("is_one_event", [True, False])
async def test_context_describes_the_occurrence(bench: Bench, *, is_one_event: bool) -> None:
    seen: list[Context] = []
    bench.handlers.add(FUNCTION, lambda context: seen.append(context))  # noqa: PLW0108
    wanted = JobDefinition(
        name=JOB, function=FUNCTION, meta={"team": "billing", "ojs": {"id": 1}}, tags=("eu", "nightly")
    )
    planned = execution_plan.from_due(Due(job=JOB, scheduled_time=NOON, definition=1), wanted)
    start = admitted(planned.plan)
    if is_one_event:
        await bench.given(execution.admit_and_dispatch(start, key=KEY))
    else:
        await bench.given(start)
        await bench.given(*execution.dispatch(execution.fold(await bench.log.load(subjects.scope_of(start))), key=KEY))
    await bench.executor.run(HeldTask(await bench.assigned()))
    [context] = seen
    assert context.meta == {"team": "billing", **occurrence_meta(JOB, NOON)}
    assert (context.tags, context.cron_name, context.cron_triggered_at) == (("eu", "nightly"), JOB, NOON)


async def test_handler_changes_only_its_own_input(bench: Bench) -> None:
    """Both executions have the same plan, which is decoded once."""
    seen: list[object] = []

    def handler(context: Any) -> None:  # noqa: ANN401 - its content is any JSON
        seen.append(str((context.input, context.args, context.meta)))
        for changed in (context.input["a"], context.args[0], context.meta):
            changed["b"].append(2)

    bench.handlers.add(FUNCTION, handler)
    content: dict[str, Any] = {"input": {"a": {"b": [1]}}, "args": ({"b": [1]},), "meta": {"b": [1]}}
    plan = execution_plan.from_due(
        Due(job=JOB, scheduled_time=NOON, definition=1), JobDefinition(name=JOB, function=FUNCTION, **content)
    ).plan
    for execution_id in (ID, f"{ID[:-1]}9"):
        start = admitted(plan).changed(execution_id=execution_id)
        await bench.given(execution.admit_and_dispatch(start, key=KEY))
        await bench.executor.run(HeldTask(await bench.assigned()))
    assert seen[0] == seen[1]


async def test_flags_are_conditions(bench: Bench) -> None:
    seen: list[tuple[bool, bool]] = []

    async def handler(context: Context) -> None:
        seen.append((bool(context.cancelled), bool(context.shutting_down)))
        bench.shutting_down.set()
        context.cancelled.set()
        seen.append((bool(context.cancelled), bool(context.shutting_down)))
        assert context.cancelled.is_watched

    await bench.run(handler)
    assert (seen, (await bench.report()).outcome) == ([(False, False), (True, True)], "completed")


async def test_very_long_timeout_has_a_deadline(bench: Bench) -> None:
    await bench.run(lambda context: context.deadline.isoformat(), timeout=1e15)
    assert (await bench.report()).outcome == "completed"


async def test_logger_names_the_attempt(bench: Bench) -> None:
    lines: list[MutableMapping[str, Any]]
    with structlog.testing.capture_logs() as lines:
        await bench.run(lambda context: context.logger.info("at it"))
    [line] = [line for line in lines if line["event"] == "at it"]
    assert (line["execution_id"], line["job"], line["step"], line["attempt"]) == (ID, JOB, "main", 1)


async def test_parameters_are_filled_from_the_input(bench: Bench) -> None:
    def warm(context: Context, cache_type: str, top_k: int = 10) -> list[object]:
        return [context.job, cache_type, top_k]

    await bench.run(warm, input={"cache_type": "redis"})
    assert (await bench.report()).result == [JOB, "redis", 10]


async def test_args_fill_parameters_before_the_input(bench: Bench) -> None:
    async def send(_: Context, to: str, subject: str) -> list[str]:
        return [to, subject]

    await bench.run(send, args=["ada"], input={"subject": "hello"})
    assert (await bench.report()).result == ["ada", "hello"]


async def test_handler_with_only_context_takes_any_input(bench: Bench) -> None:
    await bench.run(lambda context: context.input, input={"whatever": True})
    assert (await bench.report()).result == {"whatever": True}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "missing a required argument: 'cache_type'; the handler takes (context, cache_type, top_k=10)"),
        (
            {"cache_type": "redis", "topk": 3},
            "got an unexpected keyword argument 'topk'; the handler takes (context, cache_type, top_k=10)",
        ),
    ],
)
async def test_wrong_input_fails_without_retry(bench: Bench, given: dict[str, Any], text: str) -> None:
    def warm(context: Context, cache_type: str, top_k: int = 10) -> None: ...

    await bench.run(warm, input=given)
    assert await failure_of(bench) == Failure(type="wrong_input", message=text, retryable=False)


async def test_secrets_are_resolved_only_for_the_handler(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    seen: list[object] = []

    def connect(context: Context, url: str) -> None:
        seen.extend((context.input["url"], url, repr(context)))
        context.logger.warning("connecting")

    with structlog.testing.capture_logs() as lines:
        await bench.run(connect, input={"url": "pg://${env:DB_PASSWORD}@db", "price": "$${5}"}, args=[])
    assert (await failure_of(bench)).type == "wrong_input"  # `price` is no parameter: nothing ran
    assert SECRET not in repr(lines)

    bench = Bench()
    with structlog.testing.capture_logs() as lines:
        await bench.run(connect, input={"url": "pg://${env:DB_PASSWORD}@db"})
    assert seen[:2] == [f"pg://{SECRET}@db"] * 2
    assert SECRET not in str(seen[2])
    assert SECRET not in repr(lines)
    assert SECRET not in repr(await bench.log.read("execution.>"))


async def test_secret_in_error_is_redacted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", f"line\n{SECRET}")

    def connect(context: Context) -> None:
        raise LookupError(context.input["password"], f"no such user: {context.input['password']}")

    with structlog.testing.capture_logs() as lines:
        await bench.run(connect, input={"password": "${env:DB_PASSWORD}"})
    failure = await failure_of(bench)
    assert failure.message == "('${env:DB_PASSWORD}', 'no such user: ${env:DB_PASSWORD}')"
    assert SECRET not in str(failure.document())
    assert SECRET not in repr(lines)


async def test_secret_in_result_is_redacted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    await bench.run(
        lambda context: {"urls": [f"pg://{context.input['password']}@db"], context.input["password"]: 1},
        input={"password": "${env:DB_PASSWORD}"},
    )
    [report] = await bench.reports()
    assert report.result == {"urls": ["pg://${env:DB_PASSWORD}@db"], "${env:DB_PASSWORD}": 1}


async def test_lines_of_a_secret_stay_in_data(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another certificate begins and ends with the same lines as a secret one."""
    own, other = ("\n".join(("-----BEGIN CERTIFICATE-----", key * 9, "-----END CERTIFICATE-----")) for key in "AB")
    monkeypatch.setenv("DB_PASSWORD", own)

    async def handler(context: Context) -> JsonValue:
        context.logger.info(other.splitlines()[0])
        await context.heartbeat({"own": own, "other": other})
        return {"own": own, "other": other}

    await bench.run(handler, input={"key": "${env:DB_PASSWORD}"})
    await bench.output.drain()
    expected = {"own": "${env:DB_PASSWORD}", "other": other}
    [report] = await bench.reports()
    assert report.result == expected
    heartbeat = await bench.log.last("heartbeat.>")
    assert heartbeat is not None
    assert isinstance(heartbeat.message, HeartbeatDetails)
    assert heartbeat.message.details == expected
    [line] = [r.message for r in await bench.log.load("output.>")]
    assert isinstance(line, OutputLine)
    assert line.text == "${env:DB_PASSWORD}"


async def test_secret_in_an_invalid_result_is_redacted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    await bench.run(lambda context: {context.input["password"]: {1, 2}}, input={"password": "${env:DB_PASSWORD}"})
    failure = await failure_of(bench)
    assert failure.type == "invalid_result"
    assert "${env:DB_PASSWORD}" in failure.message
    assert SECRET not in str(failure.document())


async def test_only_allowed_secrets_are_resolved(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    runs: list[Context] = []
    await bench.run(runs.append, input={"name": "${env:AWS_SECRET_ACCESS_KEY}"})
    failure = await failure_of(bench)
    assert (failure.type, failure.retryable, runs) == ("secret_unresolved", True, [])
    assert "AWS_SECRET_ACCESS_KEY" in failure.message
    assert "--secret" in failure.message
    assert SECRET not in str(failure.document())


def test_secrets_of_a_worker() -> None:
    worker = Worker(secrets=["A", "file:/run/secrets/a"])
    worker.allow_secrets(["B", "file:/run/secrets/*"])
    assert worker.options.secrets == {"A", "B", "file:/run/secrets/a", "file:/run/secrets/*"}
    with pytest.raises(ValueError, match="file:a"):
        Worker(secrets=["file:a"])
    with pytest.raises(ValueError, match="A-B"):
        worker.allow_secrets(["A-B"])
    with pytest.raises(TypeError, match="secrets"):
        Worker(secrets="DB_PASSWORD")


async def test_secret_is_read_from_a_file(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text(f"{SECRET}\n")
    bench.allow(f"file:{tmp_path}/*")
    await bench.run(
        lambda context: [context.input["password"] == SECRET, context.input["password"]],
        input={"password": f"${{file:{path}}}"},
    )
    [report] = await bench.reports()
    assert report.result == [True, f"${{file:{path}}}"]


async def test_a_replaced_file_counts_for_the_next_task(tmp_path: Path) -> None:
    path = tmp_path / "password"
    seen: list[object] = []
    for content in ("old", "new"):
        path.write_text(content)
        bench = Bench()
        bench.allow(f"file:{path}")
        await bench.run(lambda context: seen.append(context.input["password"]), input={"password": f"${{file:{path}}}"})
    assert seen == ["old", "new"]


@pytest.mark.parametrize(
    ("allowed", "name"),
    [("password", "other"), ("*", "deep/password"), ("password/*", "password"), ("passwor", "password")],
)
async def test_only_allowed_files_are_read(bench: Bench, tmp_path: Path, allowed: str, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(SECRET)
    bench.allow(f"file:{tmp_path}/{allowed}")
    await bench.run(lambda _: None, input={"password": f"${{file:{path}}}"})
    failure = await failure_of(bench)
    assert (failure.type, failure.retryable) == ("secret_unresolved", True)
    assert f"--secret file:{path}" in failure.message


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Path.exists, "mount the file"),
        (Path.mkdir, "is no file"),
        (os.mkfifo, "is no file"),
        (lambda path: path.write_bytes(b"x" * 65_537), "65,536 bytes"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "UTF-8"),
        (lambda path: path.symlink_to(path), "cannot be read"),
    ],
    ids=["absent", "folder", "pipe", "large", "binary", "loop"],
)
async def test_unusable_file_is_a_failure_with_its_reason(
    bench: Bench, tmp_path: Path, make: Callable[[Path], object], reason: str
) -> None:
    path = tmp_path / "password"
    make(path)
    bench.allow(f"file:{tmp_path}/*")
    await bench.run(lambda _: None, input={"password": f"${{file:{path}}}"})
    failure = await failure_of(bench)
    assert (failure.type, failure.retryable) == ("secret_unresolved", True)
    assert reason in failure.message


async def test_missing_secret_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DB_PASSWORD", raising=False)
    await bench.run(lambda _: None, input={"password": "${env:DB_PASSWORD}"})
    failure = await failure_of(bench)
    assert (failure.type, failure.retryable) == ("secret_unresolved", True)
    assert "DB_PASSWORD" in failure.message
