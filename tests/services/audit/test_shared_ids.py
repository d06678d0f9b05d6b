"""A caller may bring the id that the execution of another job has or will have: each is judged by itself."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.services.audit.test_defects import happened
from tests.services.audit.test_read_models import Shown, compared, definitions
from tests.stored_events import StoredEvents
from tocsin.adapters.sql.history import open_history
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import Completed, Enqueued, Message, Recorded
from tocsin.subjects import RECORDED, Stream

OTHER: Final = "ojs.a"


@pytest.fixture(scope="module")
def everything() -> StoredEvents:
    return asyncio.run(happened())


def ended_id(everything: StoredEvents) -> str:
    """Return the id of an execution that the schedule of `free` started."""
    ends = [fact.message for fact in everything.facts(Completed)]
    return next(end.execution_id for end in ends if (end.job, end.trigger) == ("free", "cron"))


def shared(everything: StoredEvents) -> StoredEvents:
    """Add a request for a job under an id that another has, and the same events as those of the other."""
    id_, last = ended_id(everything), everything.log[-1].sequence
    mine = [fact for fact in everything.log if getattr(fact.message, "execution_id", None) == id_]
    definition = JobDefinition(name=OTHER, function="f", overlap_policy="allow")
    wish = Recorded(Enqueued(execution_id=id_, definition=definition), f"enqueue.{id_}", 1_000, mine[0].time)
    reports = [fact for fact in everything.reports if getattr(fact.message, "execution_id", None) == id_]
    return replace(
        everything,
        log=[*everything.log, *(of_other(fact, last) for fact in mine)],
        reports=[*everything.reports, *(of_other(fact, 1_000) for fact in reports)],
        requests=[*everything.requests, wish],
    )


def of_other(recorded: Recorded[Any], after: int) -> Recorded[Message]:
    message = recorded.message
    changes: dict[str, Any] = {"job": OTHER, **({"trigger": "api"} if hasattr(message, "trigger") else {})}
    if (admission := getattr(message, "admits", None)) is not None:
        plan = admission.plan.changed(definition=0)  # an enqueued job is not registered
        changes["admits"] = admission.changed(plan=plan)
    return msgspec.structs.replace(recorded, message=message.changed(**changes), sequence=recorded.sequence + after)


def test_two_jobs_with_one_id_are_judged_each(everything: StoredEvents) -> None:
    report = shared(everything).audited()
    assert [str(violation) for violation in report.violations] == []
    assert report.debts == ()


def test_second_end_of_one_of_them_is_noticed(everything: StoredEvents) -> None:
    both = shared(everything)
    end = next(fact for fact in reversed(both.log) if isinstance(fact.message, Completed))
    again = msgspec.structs.replace(end, sequence=end.sequence + 1_000)
    [violation] = replace(both, log=[*both.log, again]).audited().violations
    assert (violation.invariant, OTHER in violation.entity) == ("I6", True)


async def test_history_leaves_out_the_second(everything: StoredEvents, tmp_path: Path) -> None:
    both = shared(everything)
    kinds = tuple(filter_.split(".")[0] for filter_ in RECORDED[Stream.LOG])
    facts = [recorded for recorded in both.log if recorded.subject.startswith(kinds)]
    async with open_history(f"sqlite:///{tmp_path / 'history.db'}") as history:
        await history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)
        rows = {row.execution_id: row for row in (await history.executions()).rows}
    shown = Shown(rows, definitions(both), upto=facts[-1].sequence)
    assert rows[ended_id(both)].job_name == "free"
    comparison = await compared(both, shown)
    assert comparison.violations == ()
    assert comparison.remarks == (
        "the history leaves out 1 execution, because another job had an execution of the same id first",
    )
    extra = replace(rows[ended_id(both)], execution_id="extra")
    assert (await compared(both, replace(shown, rows={**rows, "extra": extra}))).remarks == (
        "the history holds 1 execution that these facts do not",
        *comparison.remarks,
    )
    wrong = replace(rows[ended_id(both)], job_name="unknown")
    [violation, *_] = (await compared(both, replace(shown, rows={**rows, wrong.execution_id: wrong}))).violations
    assert "as one of unknown" in violation.reason
