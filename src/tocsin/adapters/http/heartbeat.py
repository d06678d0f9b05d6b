"""Signs of life over HTTP, as monitors of cron jobs take them."""

import asyncio
from typing import Final

import httpx

TIMEOUT_S: Final = 10.0
"""Seconds for one request, from the connection to the status."""


class Refused(Exception):
    """The monitor answered with another status than success."""


class HttpPing:
    """Requests a URL."""

    def __init__(self, url: str, version: str) -> None:
        """`url` is a secret: who knows it can send the signs."""
        self._url = url
        self._headers = {"User-Agent": f"tocsin/{version}"}

    async def __call__(self) -> None:
        """Send a GET request; follow no redirect, and read no body.

        Raises:
            Refused: the status is no success.
            httpx.HTTPError: the monitor does not answer.
            TimeoutError: its answer does not end in time.
        """
        async with (
            asyncio.timeout(TIMEOUT_S),
            httpx.AsyncClient(timeout=TIMEOUT_S, headers=self._headers) as client,
            client.stream("GET", self._url) as response,
        ):
            if not response.is_success:
                raise Refused(f"status {response.status_code}")
