"""The answers of MQ executors: each is understood or has a code, and none is a success by accident."""

import json
from typing import Any

import pytest

from tocsin import subjects
from tocsin.domain import mq_answer
from tocsin.domain.mq_answer import AnswerRefused, Outcome

SUBJECT = "mq.scheduler.complete.job.id"


def read(body: object) -> mq_answer.Answer:
    completion = subjects.decode(SUBJECT, json.dumps(body).encode())
    assert type(completion).__name__ == "Completion"
    return mq_answer.read(completion)  # type: ignore[arg-type]


def enveloped(**data: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    return {"schema": "hanzo.mq.v1", "id": "1", "type": "scheduler.complete", "source": "functions-7", "data": data}


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        *(
            (word, "completed")
            for word in ("completed", "COMPLETED", " Completed\n", "success", "Succeeded", "OK", "done")
        ),
        *((word, "started") for word in ("started", "Running", "in_progress", "progress")),
        *((word, "failed") for word in ("failed", "FAILED", "Failure", "error", "timeout", "cancelled", "canceled")),
    ],
)
@pytest.mark.parametrize("is_enveloped", [False, True])
def test_recognized_status_is_the_outcome(status: str, outcome: Outcome, *, is_enveloped: bool) -> None:
    body = enveloped(status=status) if is_enveloped else {"status": status}
    assert read(body).outcome == outcome


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "mq-status-missing"),
        ({"state": "failed"}, "mq-status-missing"),
        ({"state": "completed"}, "mq-status-missing"),
        ({"success": False, "exit_code": 1}, "mq-status-missing"),
        ({"success": True, "exit_code": 0}, "mq-status-missing"),
        ({"result": {"status": "completed"}}, "mq-status-missing"),
        ({"status": None}, "mq-status-missing"),
        ({"error": None}, "mq-status-missing"),
        ({"error": ""}, "mq-status-missing"),
        (enveloped(), "mq-status-missing"),
        (enveloped(state="failed"), "mq-status-missing"),
        ({"schema": "hanzo.mq.v1", "data": "completed"}, "mq-status-missing"),
        ({"data": {"data": {"status": "completed"}}}, "mq-status-missing"),
        ({"status": ""}, "mq-status-unknown"),
        ({"status": "great"}, "mq-status-unknown"),
        ({"status": "completed?"}, "mq-status-unknown"),
        ({"status": 200}, "mq-status-unknown"),
        ({"status": True}, "mq-status-unknown"),
        ({"status": ["completed"]}, "mq-status-unknown"),
        ({"status": {"completed": 1}}, "mq-status-unknown"),
        ({"status": "x" * 100_000}, "mq-status-unknown"),
        (enveloped(status="unheard of"), "mq-status-unknown"),
        ({"schema": "hanzo.mq.v2", "data": {"status": "completed"}}, "mq-schema-unknown"),
        ({"schema": 1, "status": "completed"}, "mq-schema-unknown"),
        ({"schema": "hanzo.mq.v1", "status": "completed", "data": {"status": "failed"}}, "mq-answer-contradictory"),
        ({"status": "completed", "success": False}, "mq-answer-contradictory"),
        ({"status": "completed", "exit_code": 1}, "mq-answer-contradictory"),
        ({"status": "completed", "exit_code": "1"}, "mq-answer-contradictory"),
        ({"status": "completed", "success": "False"}, "mq-answer-contradictory"),
        ({"status": "completed", "success": 0}, "mq-answer-contradictory"),
        ({"status": "completed", "error": "boom"}, "mq-answer-contradictory"),
        ({**enveloped(status="completed"), "error": "boom"}, "mq-answer-contradictory"),
        ({**enveloped(status="completed"), "success": False}, "mq-answer-contradictory"),
        ({**enveloped(status="completed"), "exit_code": 1}, "mq-answer-contradictory"),
        ({"status": "completed", "attempt": "first"}, "mq-answer-invalid"),
        ({"status": "completed", "attempt": True}, "mq-answer-invalid"),
        ({"status": "completed", "attempt": 1.5}, "mq-answer-invalid"),
        ({"status": "completed", "attempt": 1e400}, "mq-answer-invalid"),
        ({"status": "completed", "step": 7}, "mq-answer-invalid"),
        ({"status": "completed", "execution_id": ["a"]}, "mq-answer-invalid"),
    ],
)
def test_other_answers_have_a_code(body: object, code: str) -> None:
    with pytest.raises(AnswerRefused) as refused:
        read(body)
    assert refused.value.code == code
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "fields",
    [
        {"error": {}},
        {"error": []},
        *({"error": value} for value in (None, "", False)),
        *({"success": value} for value in (None, True, "true", 1)),
        *({"exit_code": value} for value in (None, 0, "0", 0.0)),
    ],
)
def test_field_without_a_failure_contradicts_no_success(fields: dict[str, Any]) -> None:
    assert read({"status": "completed", **fields}).outcome == "completed"
    assert read({**enveloped(status="completed"), **fields}).outcome == "completed"


def test_answer_is_taken_from_an_envelope() -> None:
    answer = read(
        enveloped(
            status="completed",
            job_name="a.job",
            execution_id="e1",
            step="s",
            attempt=2.0,
            token="t",
            result={"rows": 1},
        )
    )
    assert answer == mq_answer.Answer("completed", "a.job", "e1", "s", 2, "t", {"rows": 1}, None, "functions-7")


def test_data_of_a_bare_answer_is_no_envelope() -> None:
    assert read({"status": "completed", "data": {"status": "failed"}, "result": 1}).outcome == "completed"


@pytest.mark.parametrize(
    ("fields", "type_", "message"),
    [
        ({"status": "failed"}, "unknown", "the executor reported no error"),
        ({"status": "timed_out"}, "timed_out", "the executor reported no error"),
        ({"error": "boom"}, "error", "boom"),
        ({"status": "failed", "error": {"type": "ValueError", "message": "boom"}}, "ValueError", "boom"),
        ({"status": "failed", "error": {"message": "boom"}}, "error", "boom"),
        ({"status": "failed", "error": {"code": 7}}, "error", '{"code":7}'),
        ({"status": "failed", "error": ["a", 1]}, "error", '["a",1]'),
        ({"status": "failed", "error": {"type": "E", "message": 7}}, "E", '{"type":"E","message":7}'),
        ({"status": "failed", "error": "x\x00y"}, "error", "x\ufffdy"),
    ],
)
def test_error_of_any_form_is_kept(fields: dict[str, Any], type_: str, message: str) -> None:
    error = read(fields).error
    assert error is not None
    assert (error.type, error.message) == (type_, message)


def test_error_keeps_the_fields_of_a_failure() -> None:
    fields = {"type": "E", "message": "m", "traceback": "t", "retryable": False, "code": "c", "details": {"a": [1]}}
    error = read({"status": "failed", "error": fields}).error
    assert error is not None
    assert error.document(exclude_none=True, exclude_defaults=True) == fields


def test_long_error_is_cut() -> None:
    error = read({"status": "failed", "error": "x" * 500_000}).error
    assert error is not None
    assert len(error.message) == mq_answer.MAX_TEXT


@pytest.mark.parametrize("result", ["x" * 65_535, list(range(70_000)), {"a": "\x00"}, 2**70])
def test_result_that_cannot_be_kept_is_a_failure(result: object) -> None:
    answer = read({"status": "completed", "result": result})
    assert answer.outcome == "failed"
    assert answer.error is not None
    assert (answer.error.type, answer.error.retryable, answer.result) == ("invalid_result", False, None)


def test_result_of_the_largest_size_is_kept() -> None:
    assert read({"status": "completed", "result": "x" * 65_534}).outcome == "completed"


def test_deep_result_is_a_failure() -> None:
    deep = json.loads("[" * 70 + "]" * 70)
    answer = read({"status": "completed", "result": deep})
    assert answer.error is not None
    assert answer.error.type == "invalid_result"


@pytest.mark.parametrize("worker", [7, "", "  ", "a\nb", {"a": 1}])
def test_unusable_name_of_an_executor_is_dropped(worker: object) -> None:
    assert read({"status": "completed", "worker": worker}).executor is None


def test_long_name_of_an_executor_is_cut() -> None:
    assert read({"status": "completed", "worker": "w" * 1_000}).executor == "w" * mq_answer.MAX_NAME
