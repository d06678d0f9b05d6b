"""The scheduler policy as administrators define it: versions, repetition, other writers, and foreign messages."""

import pytest

from tocsin import subjects
from tocsin.domain.events import Actor, PolicyDefined
from tocsin.domain.policy import NO_POLICY, Policy, PolicyError
from tocsin.services.documents import RECENT_S, Policies, PolicyVersion, Recent
from tocsin.testing import InMemoryEventLog, ManualClock

ANN = Actor(identity="ann")


@pytest.fixture
def log() -> InMemoryEventLog:
    return InMemoryEventLog(ManualClock())


async def test_policy_has_versions(log: InMemoryEventLog) -> None:
    policies = Policies(log)
    assert await policies.newest() == PolicyVersion(NO_POLICY, 0)
    assert await policies.change({"job_timeout": "1h"}, by=ANN, reason="begin")
    first = await policies.newest()
    assert (first.policy, first.by, first.reason) == (Policy(job_timeout=3_600.0), ANN.full_name, "begin")
    assert not await policies.change({"job_timeout": 3_600})
    assert await policies.change({"max_concurrent_jobs": 5})
    second = await policies.newest()
    assert second.policy == Policy(job_timeout=3_600.0, max_concurrent_jobs=5)
    stored = [r.message for r in await log.read("policy.>") if isinstance(r.message, PolicyDefined)]
    assert [fact.previous for fact in stored] == [0, first.version]


async def test_wrong_change_stores_nothing(log: InMemoryEventLog) -> None:
    with pytest.raises(PolicyError):
        await Policies(log).change({"job_timeout": -1})
    assert await log.read("policy.>") == []


async def test_changes_of_two_administrators_both_count(log: InMemoryEventLog) -> None:
    policies = Policies(log)
    seen: list[int] = []

    def wanted(current: PolicyVersion) -> Policy:
        seen.append(current.version)
        return current.policy.model_copy(update={"job_timeout": 60.0})

    append = log.append

    async def overtaken(fact: PolicyDefined, *, expect: int) -> int:
        log.append = append  # type: ignore[method-assign]
        await policies.change({"max_concurrent_jobs": 5})
        return await append(fact, expect=expect)

    log.append = overtaken  # type: ignore[method-assign, assignment]
    assert await policies.define(wanted)
    assert len(seen) == 2
    assert (await policies.newest()).policy == Policy(job_timeout=60.0, max_concurrent_jobs=5)


async def test_recent_policy_is_read_once_a_second(log: InMemoryEventLog) -> None:
    clock = ManualClock()
    policies = Policies(log)
    recent = Recent(policies, clock)
    assert (await recent.newest()).version == 0
    await policies.change({"job_timeout": 60})
    assert (await recent.newest()).version == 0
    await clock.run(2 * RECENT_S)
    assert (await recent.newest()).policy == Policy(job_timeout=60.0)
    assert await log.tail(subjects.policy()) > 0
