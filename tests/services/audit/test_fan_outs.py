"""The audit judges fan-outs by the `due`, by the map, and by the executions on the shards."""

from datetime import timedelta
from typing import Any, Final

import pytest

from tests.domain.given import JOB, NOON, plan
from tests.services.audit.test_queues import judged
from tocsin.domain import ids
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Admitted,
    Cancelled,
    Defined,
    Due,
    FannedOut,
    Message,
    Shard,
    ShardsDefined,
    ShardState,
    Skipped,
    validated,
)

ROOT: Final = ids.occurrence_id(JOB, NOON)
MAP: Final = ShardsDefined(
    shards=(Shard(shard_id="a"), Shard(shard_id="b"), Shard(shard_id="c", state=ShardState.DRAINING))
)
DEFINED: Final = Defined(
    job=JOB,
    definition=JobDefinition.model_validate(
        {"name": JOB, "schedule": "0 12 * * *", "function": "f", "partition": "all_shards", "overlap_policy": "allow"}
    ),
)


def due(version: int = 1) -> Due:
    return Due(job=JOB, scheduled_time=NOON, definition=2, shards=version)


def fanned_out(**changes: object) -> FannedOut:
    fields: dict[str, Any] = {
        "job": JOB,
        "execution_id": ROOT,
        "scheduled_time": NOON,
        "trigger": "cron",
        "definition": 2,
        "map": 1,
        "shards": ("a", "b"),
    }
    return validated(FannedOut, {**fields, **changes})


def run(shard: str, **changes: object) -> Admitted:
    divided = plan().changed(shard=shard, occurrence=ROOT, overlap_policy="allow")
    execution_id = ids.shard_execution_id(ROOT, shard)
    first = Admitted(job=JOB, execution_id=execution_id, scheduled_time=NOON, trigger="cron", plan=divided)
    return first.changed(**changes)


def found(*facts: Message) -> list[str]:
    """The reasons of the violations and debts about what should have begun."""
    report = judged(*facts)
    about = {"I1", "I2", "I3", "I5", "I6"}
    reasons = [v.reason for v in report.violations if v.invariant in about]
    owed = ("is missing", "was not requested")
    return reasons + [debt.reason for debt in report.debts if any(words in debt.reason for words in owed)]


BEFORE: Final = (MAP, DEFINED, due())
WHOLE: Final = (*BEFORE, fanned_out(), run("a"), run("b"))


def test_whole_fan_out_is_clean() -> None:
    assert [reason for reason in found(*WHOLE) if "in force named" not in reason] == []


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ((*BEFORE, fanned_out(), run("a")), "is missing"),
        ((*WHOLE, run("c")), "it was not requested"),
        (
            (*BEFORE, fanned_out(), run("a"), run("b", execution_id=ids.shard_execution_id(ROOT, "c"))),
            "is not that of shard b",
        ),
        ((MAP, DEFINED, due(7), fanned_out(), run("a"), run("b")), "its `due` names 7"),
        ((MAP, DEFINED, fanned_out(), run("a"), run("b"), due(7)), "its `due` names 7"),
        ((*BEFORE, fanned_out(shards=("a", "c")), run("a"), run("c")), "map 1 does not have as active"),
        ((fanned_out(shards=("a", "c")), run("a"), run("c"), *BEFORE), "map 1 does not have as active"),
        ((*BEFORE, fanned_out(shards=())), "lists no shard"),
        ((*BEFORE, fanned_out(shards=("a", "a")), run("a")), "or a shard twice"),
        ((*WHOLE, fanned_out()), "although it began before"),
        ((*BEFORE,), "is missing"),
        (
            (
                *WHOLE,
                Cancelled(
                    job=JOB,
                    execution_id=ids.shard_execution_id(ROOT, "a"),
                    scheduled_time=NOON,
                    trigger="cron",
                    shard="b",
                ),
            ),
            "it ends on shard b",
        ),
        ((MAP, MAP), "it follows 1"),
    ],
)
def test_defect_of_a_fan_out_is_noticed(facts: tuple[Message, ...], reason: str) -> None:
    assert any(reason in violation for violation in found(*facts)), found(*facts)


def test_skip_without_a_shard_is_clean() -> None:
    skipped = Skipped(job=JOB, execution_id=ROOT, reason="no_shard", scheduled_time=NOON, trigger="cron", definition=2)
    assert [reason for reason in found(*BEFORE, skipped) if "missing" in reason] == []


def test_later_occurrence_is_missing_alone() -> None:
    later = due().model_copy(update={"scheduled_time": NOON + timedelta(days=1)})
    assert [reason for reason in found(*WHOLE, later) if "missing" in reason] != []
