"""The event stream ends when the token of its reader no longer permits it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx
import pytest
from typing_extensions import override

from tests.http.conftest import World
from tests.http.console.browsers import listening
from tests.http.test_roles import OPERATOR, VIEWER
from tests.system.running import DEADLINE
from tocsin.adapters.http.api import events
from tocsin.adapters.http.auth.authentication import TOKEN_CHECK_S, Authentication, ProviderUnavailable
from tocsin.adapters.http.auth.session import COOKIE
from tocsin.adapters.http.auth.tokens import CACHE_TTL_S, Tokens
from tocsin.domain.access import Principal
from tocsin.ports import LogUnavailable
from tocsin.services.event_feeds import PORTION

SOON = 0.01
"""An interval of checks that a test can await."""


class Counted(Authentication):
    """Counts the checks, and fails with an error if there is one."""

    checks = 0
    failure: Exception | None = None

    @override
    async def authenticate(self, token: str) -> Principal:
        self.checks += 1
        if self.failure is not None:
            raise self.failure
        return await super().authenticate(token)


@pytest.fixture
def authentication(world: World) -> Counted:
    world.authenticator = counted = Counted(Tokens(world.projections, world.clock), None, world.clock)
    return counted


@asynccontextmanager
async def stream(world: World, **headers: str) -> AsyncIterator[AsyncIterator[str]]:
    """Open the event stream; yield its lines after the first."""
    async with (
        asyncio.timeout(DEADLINE),
        listening(world) as url,
        httpx.AsyncClient(base_url=url, timeout=DEADLINE) as client,
        client.stream("GET", "/v1/events", headers=headers) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        lines = answer.aiter_lines()
        assert await anext(lines) == "retry: 2000"
        yield lines


async def token_of(world: World, lifetime: timedelta | None = None) -> tuple[str, str]:
    """Return a token of a viewer, and its id."""
    token, stored = await Tokens(world.projections, world.clock).create("ada", [VIEWER], lifetime=lifetime)
    return token, stored.id


def presented(how: str, token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if how == "header" else {"Cookie": f"{COOKIE}={token}"}


@pytest.mark.parametrize("how", ["header", "cookie"])
async def test_stream_ends_when_its_token_is_revoked(world: World, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_S", SOON)
    token, token_id = await token_of(world)
    async with stream(world, **presented(how, token)) as lines:
        await Tokens(world.projections, world.clock).revoke(token_id)
        world.clock.advance(CACHE_TTL_S)
        assert ": the token of the client no longer permits it" in [line async for line in lines]


@pytest.mark.parametrize("how", ["header", "cookie"])
async def test_stream_ends_when_its_token_expires(world: World, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_S", SOON)
    token, _ = await token_of(world, timedelta(hours=1))
    async with stream(world, **presented(how, token)) as lines:
        world.clock.advance(3_600)
        assert ": the token of the client no longer permits it" in [line async for line in lines]


async def test_busy_stream_ends_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    token, token_id = await token_of(world)
    async with stream(world, **presented("header", token)) as lines:
        await Tokens(world.projections, world.clock).revoke(token_id)
        world.clock.advance(CACHE_TTL_S)
        # The check is due when the next event arrives, before any time without events.
        monkeypatch.setattr(events, "KEEP_ALIVE_S", 0.0)
        await world.given(name="later")
        assert "later" not in "".join([line async for line in lines])


async def test_first_token_ends_streams_without_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_S", SOON)
    async with stream(world) as lines:
        await world.token("ada", OPERATOR)
        world.clock.advance(TOKEN_CHECK_S)
        assert ": the token of the client no longer permits it" in [line async for line in lines]


@pytest.mark.parametrize("failure", [ProviderUnavailable("no keys"), LogUnavailable("no answer")])
async def test_failure_of_the_check_ends_no_stream(
    world: World, authentication: Counted, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_S", SOON)
    token, token_id = await token_of(world)
    async with stream(world, **presented("header", token)) as lines:
        authentication.failure = failure
        before = authentication.checks
        while authentication.checks < before + 3:
            await anext(lines)
        await Tokens(world.projections, world.clock).revoke(token_id)
        world.clock.advance(CACHE_TTL_S)
        authentication.failure = None
        assert ": the token of the client no longer permits it" in [line async for line in lines]


async def test_many_events_cost_no_further_check(world: World, authentication: Counted) -> None:
    token, _ = await token_of(world)
    async with stream(world, **presented("header", token)) as lines:
        for number in range(3 * PORTION):
            await world.given(name=f"job-{number}")
        async for line in lines:
            if f"job-{3 * PORTION - 1}" in line:
                break
        assert authentication.checks == 1
