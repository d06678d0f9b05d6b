"""The API on a socket, and browsers."""

from collections.abc import AsyncIterator
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx
import pytest

from tests.http.conftest import World
from tests.http.console.browsers import Browser, listening
from tests.plain_http import NO_AUTHORITIES


@pytest.fixture
async def url(world: World) -> AsyncIterator[str]:
    async with listening(world) as url:
        yield url


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
    async with httpx.AsyncClient(trust_env=False, cookies=cookies, verify=NO_AUTHORITIES) as client:
        yield client


@pytest.fixture
def browser(url: str, http: httpx.AsyncClient) -> Browser:
    return Browser(url, http)
