"""Which functions can be handlers, and what the others are told."""

import functools
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tocsin import Context, Worker
from tocsin.worker import InvalidHandlerError
from tocsin.worker.handlers import Handlers


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


def test_a_function_is_registered_and_given_back_as_it_was() -> None:
    assert Worker().task("reconcile")(reconcile) is reconcile


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (asyncgen, "asyncgen() is a generator: a handler returns its result, it yields nothing"),
        (generator, "generator() is a generator: a handler returns its result, it yields nothing"),
        (without_context, "without_context() takes no context: its first parameter must be the Context, positional"),
        (keyword_context, "keyword_context() takes no context: its first parameter must be the Context, positional"),
    ],
)
def test_what_cannot_be_a_handler_is_refused_at_registration(function: Callable[..., object], text: str) -> None:
    with pytest.raises(InvalidHandlerError) as refused:
        Worker().task("f")(function)
    assert str(refused.value) == text


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(InvalidHandlerError, match="42 is no function"):
        Handlers().add("f", 42)  # type: ignore[arg-type]


def test_forgotten_parentheses_are_pointed_out() -> None:
    with pytest.raises(InvalidHandlerError, match=r'@worker\.task\("<function>"\)'):
        Worker().task(reconcile)  # type: ignore[arg-type]


def test_a_name_is_given_once() -> None:
    handlers = Handlers()
    handlers.add("cache", warm)
    with pytest.raises(
        ValueError, match=r"'cache' is already run by warm\(\), so it cannot be run by reconcile\(\) too"
    ):
        handlers.add("cache", reconcile)


@pytest.mark.parametrize(
    ("function", "is_async"),
    [(reconcile, True), (warm, False), (Callee(), True), (functools.partial(reconcile), True), (lambda _: 1, False)],
)
def test_how_it_is_called_is_found_out_once(function: Callable[..., object], is_async: bool) -> None:  # noqa: FBT001
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


def test_one_string_is_no_list_of_queues() -> None:
    with pytest.raises(TypeError, match=r"a sequence of names, such as \('mail',\), not one string"):
        Worker("mail")


def test_two_workers_of_one_process_have_different_names() -> None:
    assert Worker().options.name != Worker().options.name
