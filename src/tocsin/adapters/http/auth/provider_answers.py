"""Answers of the identity provider, read within limits: it may be slow, damaged or hostile."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

import httpx

from ....domain.definition import shorten
from ....domain.errors import TocsinError

MAX_RESPONSE_BYTES: Final = 1_048_576
MAX_SECONDS: Final = 5.0
"""Time for a whole answer. The timeouts of the client limit only each pause within it."""
_MAX_URL: Final = 300
"""Characters of a URL in an error."""


class ProviderUnavailable(TocsinError):
    """The identity provider's keys cannot be fetched, so no token can be verified."""

    code = "identity-provider-unavailable"


async def read_json(
    http: httpx.AsyncClient,
    method: str,
    url: str,
    data: Mapping[str, str] | None = None,
    auth: httpx.BasicAuth | None = None,
) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON object of an answer.

    Raises:
        ProviderUnavailable: the provider sends no such object within `MAX_SECONDS` and `MAX_RESPONSE_BYTES`.
    """
    name = shorten(url, _MAX_URL)
    try:
        async with asyncio.timeout(MAX_SECONDS):
            status, body = await _read_bounded(http, method, url, data, auth)
        document = json.loads(body)
    except TimeoutError as error:
        raise ProviderUnavailable(f"{name}: no response within {MAX_SECONDS:g} seconds") from error
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as error:
        raise ProviderUnavailable(f"{name}: {error!r}") from error
    if not isinstance(document, dict):
        raise ProviderUnavailable(f"{name}: the response is not a JSON object")
    return status, document


async def _read_bounded(
    http: httpx.AsyncClient, method: str, url: str, data: Mapping[str, str] | None, auth: httpx.BasicAuth | None
) -> tuple[int, bytes]:
    # Uncompressed, so that a few received bytes cannot expand to many.
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    body = bytearray()
    async with http.stream(method, url, headers=headers, data=data, auth=auth) as answer:
        async for chunk in answer.aiter_bytes():
            body += chunk
            if len(body) > MAX_RESPONSE_BYTES:
                raise ValueError(f"the response is larger than {MAX_RESPONSE_BYTES} bytes")
    return answer.status_code, bytes(body)
