"""Contexts for unit tests of handlers."""

import pytest

from tocsin import Context


async def load(context: Context) -> int:
    await context.progress(0.5, "half")
    await context.heartbeat({"row": 1})
    context.logger.info("loading")
    return 0 if context.cancelled else context.attempt


async def test_handler_is_called_with_a_usual_context() -> None:
    assert await load(Context.for_test()) == 1
    context = Context.for_test(attempt=2, input={"day": "2026-11-26"})
    assert (context.attempt, context.input, context.job) == (2, {"day": "2026-11-26"}, "test")
    context.cancelled.set()
    assert await load(context) == 0


def test_contexts_share_nothing() -> None:
    first, second = Context.for_test(), Context.for_test()
    first.cancelled.set()
    assert not second.cancelled


def test_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        Context.for_test(colour="red")
