"""Registration of handlers and its errors."""

import functools
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tocsin import Context, Worker
from tocsin.worker import InvalidHandlerError
from tocsin.worker.handlers import HandlerExistsError, Handlers


async def reconcile(context: Context) -> None: ...


def warm(context: Context, cache_type: str, top_k: int = 10) -> None: ...


async def asyncgen(_: Context) -> AsyncIterator[int]:
    yield 1


def generator(_: Context) -> Iterator[int]:
    yield 1


def without_context() -> None: ...


def keyword_context(*, context: Context) -> None: ...


class Callee:
    async def __call__(self, context: Context) -> None: ...


def test_registered_function_is_returned_unchanged() -> None:
    assert Worker().task("reconcile")(reconcile) is reconcile


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (asyncgen, "asyncgen() is a generator"),
        (generator, "generator() is a generator"),
        (without_context, "without_context() takes no context"),
        (keyword_context, "keyword_context() takes no context"),
    ],
)
def test_invalid_handler_is_rejected(function: Callable[..., object], text: str) -> None:
    with pytest.raises(InvalidHandlerError) as invalid:
        Worker().task("f")(function)
    assert invalid.value.code == "invalid-handler"
    assert str(invalid.value).startswith(text)


def test_value_that_is_not_callable_is_rejected() -> None:
    with pytest.raises(InvalidHandlerError, match="42 is not a function"):
        Handlers().add("f", 42)  # type: ignore[arg-type]


def test_missing_parentheses_are_explained() -> None:
    with pytest.raises(InvalidHandlerError, match=r'@worker\.task\("<function>"\)'):
        Worker().task(reconcile)  # type: ignore[arg-type]


def test_name_can_be_registered_once() -> None:
    handlers = Handlers()
    handlers.add("cache", warm)
    with pytest.raises(HandlerExistsError, match=r"'cache' .* warm\(\), so reconcile\(\)") as taken:
        handlers.add("cache", reconcile)
    assert taken.value.code == "handler-exists"
    assert isinstance(taken.value, ValueError)


@pytest.mark.parametrize(
    ("function", "is_async"),
    [(reconcile, True), (warm, False), (Callee(), True), (functools.partial(reconcile), True), (lambda _: 1, False)],
)
def test_async_handlers_are_recognized(function: Callable[..., object], is_async: bool) -> None:  # noqa: FBT001
    handlers = Handlers()
    handlers.add("f", function)
    handler = handlers.get("f")
    assert handler is not None
    assert handler.is_async is is_async


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queues": ()}, "queues: name at least one"),
        ({"queues": ("a", "a")}, "each once"),
        ({"concurrency": 0}, "concurrency: at least 1, not 0"),
        ({"shutdown_timeout": -1}, "shutdown_timeout: at least 0 seconds, not -1"),
    ],
)
def test_options_are_checked(options: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Worker(**options)  # type: ignore[arg-type]


def test_one_string_is_not_a_list_of_queues() -> None:
    with pytest.raises(TypeError, match=r"a sequence of names, such as \('mail',\), not one string"):
        Worker("mail")


def test_workers_of_one_process_have_different_names() -> None:
    assert Worker().options.name != Worker().options.name
