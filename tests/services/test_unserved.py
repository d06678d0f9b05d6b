"""Queues that no worker reads, and functions that no worker has."""

from typing import Any

import pytest

from tests.domain.given import ID
from tocsin.domain.agent import AgentRecord, AgentState
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import QueueGrant
from tocsin.services.unserved import MAX_HINTS, Unserved, WorkerSearch, in_short, unserved


def job(name: str = "welcome", function: str = "mail/send", queue: str = "mail", **fields: Any) -> JobDefinition:  # noqa: ANN401
    return JobDefinition(name=name, function=function, queue=queue, **fields)


def worker(*functions: str, queue: str = "mail", **fields: Any) -> AgentRecord:  # noqa: ANN401
    defaults: dict[str, Any] = {"name": "mail-1", "agent_id": ID, "state": AgentState.ENABLED}
    return AgentRecord(**defaults | {"queues": [queue], "functions": list(functions)} | fields)


def only(jobs: list[JobDefinition], *workers: AgentRecord, outside: tuple[str, ...] = ()) -> Unserved:
    [missing] = unserved(jobs, workers, outside=outside)
    return missing


def test_queue_without_a_reader_is_one_finding() -> None:
    missing = only([job(f"j{number}", f"f{number}") for number in range(5)])
    assert (missing.queue, missing.function, len(missing.jobs)) == ("mail", None, 5)
    assert str(missing) == (
        "no worker reads queue `mail` (jobs j0, j1, j2 and 2 more); start one: `Worker(queues=['mail'])`"
    )


def test_misspelled_queue_names_the_nearest() -> None:
    assert "did you mean `mail`?" in str(only([job(queue="mial", function="other")], worker("mail/send")))


def test_unread_queue_names_where_its_functions_are() -> None:
    missing = only([job(queue="letters")], worker("mail/send"))
    assert str(missing).endswith("; the workers of queue `mail` have its functions")


def test_function_names_the_nearest_of_its_queue() -> None:
    assert "did you mean `mail/send`?" in str(only([job(function="mail/sent")], worker("mail/send")))


def test_function_names_the_queue_that_has_it() -> None:
    gpu = worker("train", queue="gpu")
    assert "the workers of queue `gpu` have it" in str(only([job(function="train")], worker("mail/send"), gpu))


def test_ungranted_function_names_the_command() -> None:
    granted = worker("mail/send", grants=[QueueGrant(queue="other", functions=("*",))])
    assert "run `tocsin agents allow mail-1 --queue mail --function 'mail/send'`" in str(only([job()], granted))


@pytest.mark.parametrize("state", [AgentState.DISABLED, AgentState.DRAINING])
def test_inactive_agents_are_named(state: AgentState) -> None:
    missing = only([job()], worker("mail/send", state=state))
    assert str(missing).endswith("no worker reads queue `mail` (job welcome); disabled or draining: mail-1")


def test_lost_worker_serves_nothing() -> None:
    assert only([job()], worker("mail/send", state=AgentState.LOST)).function is None


def test_patterns_of_http_workers_count() -> None:
    over_http = worker("mail/*", kind="http")
    assert unserved([job()], [over_http]) == []
    assert only([job(function="report")], over_http).function == "report"


def test_disabled_jobs_and_outside_queues_need_no_worker() -> None:
    assert unserved([job(enabled=False), job(queue="mq")], [], outside=["mq"]) == []


def test_waiting_tasks_need_their_functions() -> None:
    waiting = {"mail": ("mail/send", "mail/sent", "print"), "mq": ("f",), "unread": ("f",)}
    missing = unserved([job(function="print")], [worker("mail/send")], outside=["mq"], waiting=waiting)
    assert [(each.queue, each.function, each.jobs) for each in missing] == [
        ("mail", "print", ("welcome",)),
        ("mail", "mail/sent", ()),
    ]
    assert str(missing[1]) == "no live agent of queue `mail` has `mail/sent` (tasks wait); did you mean `mail/send`?"


def test_short_form_counts_functions_by_queue() -> None:
    jobs = [job("a", "f"), job("b", "g"), job("c", queue="gpu")]
    assert in_short(unserved(jobs, [worker("mail/send")])) == {"mail": 2, "gpu": None}


def test_hints_are_bounded() -> None:
    jobs = [job(f"j{number}", f"mail/sen{number}") for number in range(1_000)]
    missing = unserved(jobs, [worker("mail/send")])
    assert len(missing) == 1_000
    assert sum(each.nearest is not None for each in missing) == 100


def test_hints_for_many_tasks_are_bounded() -> None:
    search = WorkerSearch([worker("mail/send")])
    found = [search.lacks("welcome", "mail", f"mail/send{number}") for number in range(MAX_HINTS + 10)]
    assert [missing is not None and missing.nearest for missing in found] == ["mail/send"] * MAX_HINTS + [None] * 10
