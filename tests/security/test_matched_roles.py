"""An installation whose queues are all matched: workers store nothing in the log."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.security import installations
from tests.security.installations import connected
from tests.security.server import Server
from tests.security.test_roles import everybody
from tocsin import Context, Worker
from tocsin.adapters.nats.agents import NatsFetchChannel
from tocsin.bootstrap.nats_roles import permissions
from tocsin.domain.events import Completed, Started
from tocsin.domain.task_fetch import Lease
from tocsin.ports import NotAllowed
from tocsin.services.jobs import Registry
from tocsin.services.operations import worker_answers
from tocsin.services.operations.task_fetches import Holder, TaskFetches
from tocsin.settings import Settings

MATCHED: Final = {"default": {"transport": "matched"}, "outside": {"transport": "mq"}}


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(installations, "QUEUES", MATCHED)
    with installations.installed(tmp_path) as running:
        yield running


async def test_worker_needs_no_right_to_the_log(secured: Server, tmp_path: Path) -> None:
    worker = Worker()

    @worker.task("works")
    async def works(context: Context) -> None:
        await context.progress(0.5)
        context.logger.info("working")

    before = len(secured.log)
    async with everybody(secured, tmp_path, worker) as tocsin:
        registry = Registry(tocsin.log, tocsin.installation.projections, tocsin.installation.clock)
        await tocsin.apply({"name": "job", "function": "works", "overlap_policy": "allow"})
        await registry.trigger("job")
        await registry.trigger("job")
        await tocsin.ended("job", Completed, 2)
        assert len(await tocsin.facts("execution.job.*.started.>", Started)) == 2
    assert "Violation" not in secured.log[before:]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Nats-Expected-Last-Subject-Sequence": "0"},
        {"Nats-Rollup": "all"},
        {"Nats-Rollup": "sub"},
        {"Nats-TTL": "1s"},
        {"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": "tocsin.0.execution.j.0198.completed"},
    ],
    ids=["plain", "guarded", "rollup of all", "rollup of a subject", "lifetime", "schedule"],
)
@pytest.mark.parametrize(
    "subject",
    [
        "execution.j.0198.started.main.1.1",
        "execution.j.0198.completed",
        "lock.j.acquired",
        "timer.j.0198.lease.main.1.1",
        "delay.j.0198.retry.main.1",
    ],
)
async def test_worker_stores_nothing_in_the_log(
    subject: str, headers: dict[str, str], secured: Server, tmp_path: Path
) -> None:
    async with connected(secured, tmp_path, "worker") as installation:
        with pytest.raises(NotAllowed):
            await installation.connection.store(installation.names.to_wire(subject), b"{}", headers)


async def test_api_fetches_with_no_more_than_is_granted(secured: Server, tmp_path: Path) -> None:
    before = len(secured.log)
    async with everybody(secured, tmp_path) as tocsin, connected(secured, tmp_path, "api") as api:
        channel = NatsFetchChannel(api.connection, api.names)
        registry = Registry(tocsin.log, tocsin.installation.projections, tocsin.installation.clock)
        await tocsin.apply({"name": "job", "function": "works", "overlap_policy": "allow"})
        await registry.trigger("job")
        async with TaskFetches(api.log, channel, api.clock).running() as fetches:
            taken = {"limit": 1, "holder": Holder("ada", "w"), "lease": Lease(60.0), "wait": 20.0}
            [held] = await fetches.take(["default"], functions=("*",), **taken)  # type: ignore[arg-type]
        await worker_answers.complete(api.log, held, "done", key=await api.report_key())
        await tocsin.ended("job", Completed)
    assert "Violation" not in secured.log[before:]


FETCHING: Final = {
    "tocsin.fetch.request": ({"api"}, {"matcher", "scheduler"}),
    "tocsin.fetch.answer.*": ({"matcher", "scheduler"}, {"api"}),
    "tocsin.fetch.call": ({"matcher", "scheduler"}, {"api"}),
}
"""Subject -> the users that may publish there, and those that may listen."""


@pytest.mark.parametrize("subject", FETCHING)
def test_only_api_and_matcher_exchange_fetches(subject: str) -> None:
    settings = Settings.model_validate({"queues": MATCHED, "server": {"over_nats": True}})
    roles = permissions(settings)
    assert {"public", "mq-executor", "api-client", "worker", "operator", "viewer", "admin"} <= roles.keys()
    one = subject.replace("*", "any")
    publishers = {name for name, rules in roles.items() if any(matches(rule, one) for rule in rules.publish)}
    listeners = {name for name, rules in roles.items() if any(matches(rule, one) for rule in rules.subscribe)}
    assert (publishers, listeners) == FETCHING[subject]


def matches(rule: str, subject: str) -> bool:
    """Match a subject as NATS does."""
    tokens, wanted = rule.split("."), subject.split(".")
    for index, token in enumerate(tokens):
        if token == ">":  # noqa: S105 - a wildcard
            return len(wanted) > index
        if index >= len(wanted) or token not in {"*", wanted[index]}:
            return False
    return len(tokens) == len(wanted)
