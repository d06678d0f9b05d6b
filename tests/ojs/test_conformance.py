"""Levels 0 to 4 of the public conformance suite, each case without and with authentication.

Both servers play a case at the same time, because cases mostly wait.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Final

import pytest

from tests.ojs import expectations, runner
from tests.ojs.runner import Case, cases
from tests.ojs.served import Server, server

SLOW: Final = {"L2-CRON-004", "L2-CRON-005"}
"""They wait for whole minutes, so only the long tests play them."""
IMPOSSIBLE: Final[Mapping[str, str]] = {
    "L1-RTR-014": "it wants three types of errors, and no request of it names any of them",
}

PLAYED: Final = [case for case in cases() if case.id not in SLOW | set(IMPOSSIBLE)]
WAITING: Final = [case for case in cases() if case.id in SLOW]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Server]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(server(tmp_path_factory.mktemp(name), with_token=name == "token"))
            for name in ("open", "token")
        }


def test_only_named_cases_are_left_out() -> None:
    assert len(list(cases())) == 133
    assert len(PLAYED) == 130
    assert len({case.label for case in (*PLAYED, *WAITING)}) == 132


@pytest.mark.parametrize("case", PLAYED, ids=lambda case: case.label)
async def test_a_case_of_the_suite(case: Case, servers: Mapping[str, Server]) -> None:
    await play(case, servers)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", WAITING, ids=lambda case: case.label)
async def test_a_case_that_waits_for_minutes(case: Case, servers: Mapping[str, Server]) -> None:
    await play(case, servers)


async def play(case: Case, servers: Mapping[str, Server]) -> None:
    """Play a case at all servers at the same time."""

    async def played(name: str) -> list[str]:
        async with servers[name].client() as client:
            return [f"{name}: {fault}" for fault in await runner.played(case, client)]

    found = await asyncio.gather(*map(played, servers))
    assert not [fault for faults in found for fault in faults]


async def test_request_without_a_token_is_refused(servers: Mapping[str, Server]) -> None:
    stranger = Server(servers["token"].url, servers["token"].nats_url)
    async with stranger.client() as client:
        answer = await client.post("/ojs/v1/workers/fetch", json={"queues": ["default"]})
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")
        assert (await client.post("/dev/reset")).status_code == 401


@pytest.mark.parametrize(
    ("want", "got"),
    [
        ("string:uuidv7", "6f1c1d7e-0000-4000-8000-000000000000"),
        ("string:datetime", "2026-01-01T00:00:00"),
        ("string:nonempty", ""),
        ("absent", 0),
        ("~1000", 1101),
        ("~1000", "1000"),
        ("array:length:1", []),
        ("array:min:2", [1]),
        ("available", "active"),
        (1, True),
        (0, None),
        (None, expectations.MISSING),
        (True, 1),
        ([1, 2], [1]),
        ({"$exists": True}, None),
        ({"$exists": False}, 1),
        ({"$exists": True, "$type": "string"}, 1),
        ({"$in": ["a", "b"]}, "c"),
        ({"$size": {"$gte": 1}}, []),
        ({"range": {"min": 1, "max": 2}}, 3),
        ({"key": 1}, {"key": 2}),
        ({"key": 1}, {"key": 1, "more": 1}),
        ("contains:x", ["y"]),
        ("not_contains:x", ["x"]),
    ],
)
def test_unexpected_answer_is_reported(want: object, got: object) -> None:
    with pytest.raises(expectations.Mismatch):
        expectations.check(want, got)


@pytest.mark.parametrize("want", ["string:ulid", "array:some", {"$near": 1}, {}, {"key": 1, "$in": []}])
def test_unknown_expectation_is_a_failure(want: object) -> None:
    with pytest.raises(expectations.UnknownForm):
        expectations.check(want, "x")


def test_where_to_look() -> None:
    document = {"jobs": [{"id": "a", "n": [[7]]}, {"id": "b"}]}
    assert expectations.at("$.jobs[0].n[0][0]", document) == 7
    assert expectations.at("$.jobs[*].id", document) == ["a", "b"]
    assert expectations.at("$.jobs[?(@.id=='b')].id", document) == "b"
    for path in ("$.jobs[2].id", "$.none", "$.jobs.id", "$.jobs[?(@.id=='c')]", "$.jobs[0].id.x"):
        assert expectations.at(path, document) is expectations.MISSING
    with pytest.raises(expectations.UnknownForm):
        expectations.at("$..id", document)


async def test_manifest_names_the_priorities(servers: Mapping[str, Server]) -> None:
    async with servers["open"].client() as client:
        manifest = (await client.get("/ojs/manifest")).json()
    assert (manifest["conformance_level"], manifest["capabilities"]["priority_queues"]) == (4, True)
    uris = [extension["uri"] for extension in manifest["extensions"]["official"]]
    assert uris == ["urn:ojs:ext:progress", "urn:ojs:ext:admin-api"]


async def test_manifest_names_its_limits(servers: Mapping[str, Server]) -> None:
    async with servers["open"].client() as client:
        manifest = (await client.get("/ojs/manifest")).json()
    assert manifest["batch_limits"] == {"max_batch_size": 1_000, "max_ack_batch_size": 100}
    assert manifest["rate_limits"]["on_limit"] == ["wait"]
    assert manifest["capabilities"]["rate_limiting"] is manifest["capabilities"]["batch_enqueue"] is True


async def test_manifest_declares_the_strength_of_uniqueness(servers: Mapping[str, Server]) -> None:
    async with servers["open"].client() as client:
        manifest = (await client.get("/ojs/manifest")).json()
    assert manifest["capabilities"]["unique_jobs"]["strength"] == manifest["unique_job_strength"] == "strong"


async def test_manifest_declares_workflows_and_their_limits(servers: Mapping[str, Server]) -> None:
    async with servers["open"].client() as client:
        manifest = (await client.get("/ojs/manifest")).json()
    assert manifest["capabilities"]["workflows"] is True
    assert manifest["workflow_limits"] == {"max_jobs": 100, "max_nesting_depth": 5}


async def test_manifest_names_its_tier(servers: Mapping[str, Server]) -> None:
    """A runtime runs jobs through their lifecycle over one protocol; `full` would need gRPC (ojs-conformance §3)."""
    async with servers["open"].client() as client:
        manifest = (await client.get("/ojs/manifest")).json()
    assert (manifest["conformance_tier"], manifest["protocols"]) == ("runtime", ["http"])
