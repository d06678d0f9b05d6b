"""The status of a container, as an API server may show it."""

from typing import Any

import pytest

from tocsin.worker.builtin.pod_status import End, Status, is_finished, items_of, read_status, uid_of

EXIT_143 = {"terminated": {"exitCode": 143, "reason": "Error"}}


def condition(kind: str, reason: str) -> dict[str, str]:
    return {"type": kind, "status": "True", "reason": reason}


def job(*conditions: dict[str, str], **status: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"metadata": {"uid": "1"}, "status": {"conditions": list(conditions), **status}}


def pod(state: Any, **status: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    status = {"containerStatuses": [{"name": "main", "state": state}], **status}
    return {"metadata": {"name": "pod"}, "status": status}


@pytest.mark.parametrize(
    ("of_job", "pods", "end"),
    [
        ([], [], None),
        ([], [pod(EXIT_143)], End(143, "Error")),
        ([condition("FailureTarget", "DeadlineExceeded")], [pod({"running": {}})], None),
        ([condition("FailureTarget", "DeadlineExceeded")], [], None),
        ([condition("FailureTarget", "DeadlineExceeded")], [pod(EXIT_143)], End(None, "DeadlineExceeded")),
        ([condition("Failed", "DeadlineExceeded")], [pod(EXIT_143)], End(None, "DeadlineExceeded")),
        ([condition("Failed", "DeadlineExceeded")], [pod({"terminated": {"exitCode": 0}})], End(0, "")),
        ([condition("FailureTarget", "BackoffLimitExceeded")], [pod(EXIT_143)], End(143, "Error")),
        ([condition("Complete", "")], [], End(0, "Completed")),
    ],
)
def test_end_of_a_container(of_job: list[dict[str, str]], pods: list[dict[str, Any]], end: End | None) -> None:
    assert read_status(job(*of_job), pods, "main").end == end


@pytest.mark.parametrize(
    ("of_job", "is_over"),
    [
        (job(condition("Failed", "DeadlineExceeded")), True),
        (job(condition("Failed", "DeadlineExceeded"), terminating=1), False),
        (job(condition("FailureTarget", "DeadlineExceeded")), False),
        (job(condition("Complete", ""), terminating=0), True),
    ],
)
def test_job_whose_pod_terminates_is_not_finished(of_job: dict[str, Any], *, is_over: bool) -> None:
    assert is_finished(of_job) is is_over


@pytest.mark.parametrize("wrong", [None, 1, "x", [], [1], {}, {"x": 1}])
def test_objects_that_lack_parts_are_read(wrong: Any) -> None:  # noqa: ANN401 - JSON
    waiting = Status("pod", has_begun=False, waits_for="Pending", message="", end=None)
    assert read_status({"status": wrong}, [pod(wrong)], "main") == waiting
    assert read_status({"status": {"conditions": wrong}}, items_of({"items": wrong}, "items"), "main").end is None
    assert uid_of({"metadata": wrong}) == ""


def test_long_reason_is_cut() -> None:
    end = read_status(job(), [pod({"terminated": {"exitCode": 1, "reason": "x" * 100_000}})], "main").end
    assert end is not None
    assert len(end.reason) < 1_000
