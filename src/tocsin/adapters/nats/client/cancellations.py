"""Cancellations that nats-py loses on Python 3.11.

Before Python 3.12, `asyncio.wait_for` drops a cancellation that comes together with its result (CPython issue 86296). nats-py
waits for each answer with it. A stage that was cancelled at that moment went on without an end, and its process did not end on SIGTERM.
"""

import asyncio
import sys
from collections.abc import Awaitable
from functools import cache
from types import ModuleType
from typing import Final, TypeVar

from nats.aio import client, subscription
from nats.js import client as js_client
from nats.js import kv, object_store

T = TypeVar("T")

WAITING: Final[tuple[ModuleType, ...]] = (client, subscription, js_client, kv, object_store)
"""The modules of nats-py that call `asyncio.wait_for` in requests and reads."""
IS_NEEDED: Final = sys.version_info < (3, 12)


async def _wait_for(waited: Awaitable[T], timeout: float | None) -> T:  # noqa: ASYNC109 - the signature of asyncio.wait_for
    """Wait as `asyncio.wait_for` does from Python 3.12 on."""
    async with asyncio.timeout(timeout):
        return await waited


@cache
def keep_cancellations() -> None:
    """Let nats-py wait in the way of Python 3.12.

    `asyncio` itself stays as it is, for all other code of the process.
    """
    if not IS_NEEDED:
        return
    own = ModuleType(asyncio.__name__, asyncio.__doc__)
    own.__dict__.update({**vars(asyncio), "wait_for": _wait_for})
    for module in WAITING:
        if getattr(module, "asyncio", None) is asyncio:
            module.asyncio = own  # type: ignore[attr-defined]
