"""A client that behaves as a browser does: it keeps cookies, and says where a request comes from."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.cookies import Morsel, SimpleCookie
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.http.conftest import World
from tocsin.adapters.http.auth.session import COOKIE, CSRF_HEADER
from tocsin.adapters.http.server import answering
from tocsin.adapters.http.sockets import listen, url_of


@asynccontextmanager
async def listening(world: World) -> AsyncIterator[str]:
    """Serve a copy of the API on a socket; yield its URL."""
    listener = listen("127.0.0.1", 0)
    async with answering(world.app(), listener, world.settings.server):
        yield url_of(listener)


@dataclass
class Browser:
    """One browser, whose pages are those of the console unless a request names another site."""

    url: str
    http: httpx.AsyncClient
    cookies: dict[str, str] = field(default_factory=dict)
    csrf: str | None = None

    async def send(
        self, method: str, path: str, body: object = None, *, csrf: str | None = None, **headers: str
    ) -> httpx.Response:
        """Send a request with the cookies, and keep those of the answer."""
        wanted = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            wanted["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if csrf is not None:
            wanted[CSRF_HEADER] = csrf
        content = None if body is None else json.dumps(body)  # ASCII, also of text that is no Unicode
        if content is not None:
            wanted["Content-Type"] = "application/json"
        answer = await self.http.request(method, self.url + path, content=content, headers=wanted)
        for morsel in set_cookies(answer):
            if morsel["max-age"] == "0":
                self.cookies.pop(morsel.key, None)
            else:
                self.cookies[morsel.key] = morsel.coded_value  # with quotation marks, as browsers keep it
        return answer

    async def change(self, method: str, path: str, body: object = None) -> httpx.Response:
        """Send a request with the CSRF token, as the console does."""
        return await self.send(method, path, body, csrf=self.csrf)

    async def sign_in(self, token: str) -> httpx.Response:
        """Sign in with a token."""
        answer = await self.send("POST", "/console/session", {"token": token}, Origin=self.url)
        if answer.is_success:
            self.csrf = answer.json()["csrf_token"]
        return answer

    @property
    def session(self) -> str:
        """The token that the browser keeps."""
        return self.cookies[COOKIE]

    async def session_state(self) -> Any:  # noqa: ANN401 - JSON
        """Return the state of the session, as the server shows it."""
        return (await self.send("GET", "/console/session")).json()


def set_cookies(answer: httpx.Response) -> list["Morsel[str]"]:
    """The cookies that an answer sets."""
    return [morsel for header in answer.headers.get_list("Set-Cookie") for morsel in SimpleCookie(header).values()]


async def raw_request(url: str, head: bytes) -> bytes:
    """Send a head that no client library would write; return the answer."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(head + b"\r\nHost: " + parts.netloc.encode() + b"\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer
