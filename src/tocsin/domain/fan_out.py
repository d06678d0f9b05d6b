"""The executions of a job that is divided into shards."""

from collections.abc import Sequence
from typing import TypeAlias

from . import ids, start_jitter
from .events import Admitted, FannedOut, Planned, Requested

First: TypeAlias = Planned | Admitted


def on_shard(first: First, shard: str) -> First:
    """Return the only execution of an occurrence or trigger, on a shard."""
    plan = first.plan.changed(shard=shard)
    return first.changed(plan=plan)


def on_each_shard(first: First, shard: str, jitter: float = 0.0) -> First:
    """Return the execution on one of several shards.

    It answers no trigger: the executions of a trigger have different fates. `jitter`: that of the job, so that each starts at a time of its own.
    """
    execution_id = ids.shard_execution_id(first.execution_id, shard)
    plan = start_jitter.delayed_again(first.plan, execution_id, jitter)
    plan = plan.changed(shard=shard, occurrence=first.execution_id)
    unanswered = {"trigger_id": None} if isinstance(first, Planned) else {}
    return first.changed(execution_id=execution_id, plan=plan, **unanswered)


def fanned_out(first: Requested, version: int, shards: Sequence[str]) -> FannedOut:
    """Return the event that fixes the shards of an occurrence or trigger."""
    return FannedOut(
        job=first.job,
        execution_id=first.execution_id,
        scheduled_time=first.scheduled_time,
        trigger=first.trigger,
        definition=first.plan.definition,
        map=version,
        shards=tuple(shards),
        by=first.by,
    )


def execution_ids(fact: FannedOut) -> dict[str, str]:
    return {shard: ids.shard_execution_id(fact.execution_id, shard) for shard in fact.shards}
