"""The audit judges the claims of tasks that only the owner of a resource gets."""

from typing import Any, Final

import pytest

from tests.domain.given import ID, JOB, NOON, admitted, plan
from tests.services.audit.test_queues import KEY, judged
from tocsin.domain import execution
from tocsin.domain.events import (
    Completed,
    Dispatched,
    Message,
    OwnershipAssigned,
    Recorded,
    Released,
    Started,
    validated,
)
from tocsin.domain.ownership import EXECUTOR

A: Final = "01890f3e-0000-7000-8000-00000000000a"
B: Final = "01890f3e-0000-7000-8000-00000000000b"


def owner(name: str, agent_id: str, reason: str = "vacant") -> OwnershipAssigned:
    return validated(OwnershipAssigned, {"resource": EXECUTOR, "name": name, "agent_id": agent_id, "reason": reason})


FIRST: Final = owner("a", A)
SECOND: Final = owner("b", B, "silent")


def task(job_class: str = "LEADER_ONLY") -> tuple[Message, Dispatched]:
    """An admission and its task; with an owner before them, they are the second and the third event of the log."""
    admission = admitted(plan().changed(job_class=job_class))
    state = execution.evolve(execution.initial, Recorded(admission, "", 1, NOON))
    [dispatched] = execution.dispatch(state, key=KEY)
    return admission, dispatched


def claim(worker: str = "a", agent: str | None = A, *, epoch: int | None = 1, delivery: int = 1) -> Started:
    return Started(
        **of(),
        delivery=delivery,
        worker=worker,
        agent=agent,
        epoch=epoch,
    )


def of() -> dict[str, Any]:
    return {"job": JOB, "execution_id": ID, "step": "main", "attempt": 1}


def released() -> Released:
    return Released(**of(), delivery=1, task=3, reason="handed_back")


def completed() -> Completed:
    return Completed(job=JOB, execution_id=ID, scheduled_time=NOON, trigger="cron", step="main", attempt=1)


def ownership(*facts: Message) -> list[str]:
    """The violations that are about owners."""
    words = ("epoch", "owner", "owned")
    return [v.reason for v in judged(*facts).violations if any(word in v.reason for word in words)]


def test_claim_of_the_owner_is_clean() -> None:
    assert ownership(FIRST, *task(), claim(), completed()) == []
    assert ownership(*task("LOCAL_SAFE"), claim(epoch=None), completed()) == []


def shard_owner(name: str = "a", agent_id: str = A, reason: str = "vacant") -> OwnershipAssigned:
    return owner(name, agent_id, reason).changed(resource="shard-s1")


def shard_task() -> tuple[Message, Dispatched]:
    """A task on a shard; it names no resource."""
    admission = admitted(plan().changed(shard="s1"))
    [dispatched] = execution.dispatch(execution.evolve(execution.initial, Recorded(admission, "", 1, NOON)), key=KEY)
    assert dispatched.resource is None
    return admission, dispatched


def test_any_worker_claims_on_a_free_shard() -> None:
    assert ownership(*shard_task(), claim(epoch=None), completed()) == []
    assert ownership(*shard_task(), claim("http", None, epoch=None), shard_owner(), completed()) == []


def test_owner_claims_on_its_shard() -> None:
    assert ownership(shard_owner(), *shard_task(), claim(), completed()) == []
    assert ownership(shard_owner(), *shard_task(), claim("mq", None, epoch=None), completed()) == []


@pytest.mark.parametrize("stale", [claim(epoch=None), claim("b", B, epoch=None)])
def test_claim_without_the_owner_must_be_released(stale: Started) -> None:
    assert ownership(shard_owner(), *shard_task(), stale, released()) == []
    [found] = ownership(shard_owner(), *shard_task(), stale, completed())
    assert "rests on a claim under epoch None" in found


def test_claim_on_a_shard_of_another_is_found() -> None:
    leased = claim("http", None, epoch=None).changed(lease=30.0)
    [found] = ownership(shard_owner(), *shard_task(), leased, completed())
    assert "rests on a claim" in found
    [found] = ownership(shard_owner(), *shard_task(), claim("b", B))
    assert "b claimed it, and a owned shard-s1" in found
    [found] = ownership(*shard_task(), claim(epoch=7))
    assert "epoch 7 of shard-s1, which has no owner" in found


def test_outdated_claim_is_clean_once_released() -> None:
    assert ownership(FIRST, *task(), SECOND, claim(), released()) == []


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ((*task(), claim(epoch=None)), "executor had no owner"),
        ((FIRST, *task(), claim(epoch=None)), "claimed under epoch None"),
        ((FIRST, *task(), claim(epoch=9)), "claimed under epoch 9"),
        ((FIRST, *task(), claim("b", B)), "b claimed it, and a owned executor"),
        ((FIRST, *task(), claim("a", B)), "a claimed it, and a owned executor"),
        ((FIRST, *task("LOCAL_SAFE"), claim()), "epoch 1 of no resource"),
        ((FIRST, *task(), SECOND, claim(), completed()), "its end rests on a claim under epoch 1"),
        ((FIRST, FIRST.changed(reason="silent")), "assigned to its owner"),
        ((FIRST, owner("b", B)), "as `vacant`, and had an owner"),
        ((SECOND,), "as `silent`, and had no owner"),
    ],
)
def test_claim_of_another_is_a_violation(facts: tuple[Message, ...], reason: str) -> None:
    [found] = ownership(*facts)
    assert reason in found
