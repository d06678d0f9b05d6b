"""The handler that a worker runs for a function with types."""

import inspect
from collections.abc import Awaitable, Callable
from typing import cast

from pydantic import JsonValue

from ..worker import Context
from .signature import Signature


def handler_of(function: Callable[..., object], signature: Signature) -> Callable[..., object]:
    """Return a handler that converts the input, calls the function, and converts its result."""
    handler = _async(function, signature) if inspect.iscoroutinefunction(function) else _sync(function, signature)
    # Not by `functools.wraps`: the worker must read the handler's own signature.
    handler.__name__, handler.__qualname__, handler.__module__ = (
        function.__name__,
        function.__qualname__,
        function.__module__,
    )
    return handler


def _async(function: Callable[..., object], signature: Signature) -> Callable[..., object]:
    async def handle(context: Context, /, *args: JsonValue, **given: JsonValue) -> JsonValue:
        call = cast("Awaitable[object]", function(**signature.arguments(context, args, given)))
        return signature.dump(await call)

    return handle


def _sync(function: Callable[..., object], signature: Signature) -> Callable[..., object]:
    def handle(context: Context, /, *args: JsonValue, **given: JsonValue) -> JsonValue:
        return signature.dump(function(**signature.arguments(context, args, given)))

    return handle
