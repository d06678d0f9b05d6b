"""Each behaviour runs in every world."""

from collections.abc import AsyncIterator

import pytest

from tests.conformance.worlds import CommitsWorld, MemoryWorld, NatsWorld, World, nats_world

DIFFERS = {
    "test_load_after_a_sequence_returns_only_newer_events": "all events share their numbers",
    "test_scope_with_an_undecodable_event_is_not_folded": "an event in a commit is JSON",
    "test_event_that_was_set_aside_is_skipped": "an event in a commit is JSON",
    "test_process_remembers_few_events_set_aside": "an event in a commit is JSON",
    "test_watcher_sees_undecodable_messages": "an event in a commit is JSON",
    "test_stream_reports_its_extent": "all events share their numbers",
    "test_decision_keeps_the_headers_of_its_guard": "the guard is that of the commit",
    "test_durable_has_passed_acknowledged_and_earlier_messages": "no durable reads commits",
    "test_a_durable_is_past_what_was_ended": "no durable reads commits",
}
"""What is another behaviour on the log of commits, and why."""
OVER_COMMITS = {"test_event_log", "test_stored_log", "test_watch"}


@pytest.fixture(params=["memory", "nats", "commits"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "memory":
        yield MemoryWorld()
        return
    if request.param == "commits":
        if request.module.__name__.rpartition(".")[2] not in OVER_COMMITS:
            pytest.skip("it does not concern decisions")
        if (reason := DIFFERS.get(request.function.__name__)) is not None:
            pytest.skip(reason)
        async with CommitsWorld().running() as commits:
            yield commits
        return
    async with nats_world(request.getfixturevalue("nats_url")) as nats:
        yield nats


@pytest.fixture
async def nats(nats_url: str) -> AsyncIterator[NatsWorld]:
    """The real server, for what only it does."""
    async with nats_world(nats_url) as world:
        yield world
