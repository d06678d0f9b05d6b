"""The application asked from inside, without a socket: for those who speak another protocol outside."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import httpx
from fastapi import FastAPI
from fastapi.routing import APIRoute

NO_END: Final = "streamEvents"
"""Its answer has no end, so that only HTTP can tell it."""


def operations(routes: Iterable[APIRoute]) -> Iterator[tuple[str, str, str, bool]]:
    """Each operation: its name, its method, its path, and whether it takes a body."""
    for route in routes:
        if route.operation_id and route.operation_id != NO_END:
            [method] = route.methods or ("GET",)
            yield route.operation_id, method, route.path, route.body_field is not None


class InProcessClient:
    """Asks an application."""

    def __init__(self, app: FastAPI, source: str) -> None:
        """`source`: where facts say that requests come from."""
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(source, 0))
        self._client = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    async def ask(
        self, method: str, path: str, query: Mapping[str, Any], body: object, headers: Mapping[str, str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        """The status, the headers and the body of the answer."""
        answer = await self._client.request(method, path, params=query, json=body, headers=headers)
        return answer.status_code, answer.headers, answer.content
