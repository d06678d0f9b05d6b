"""Which functions can be handlers, and how a task's input becomes their arguments."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Final

from pydantic import JsonValue

from ..domain.errors import TocsinError

_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.VAR_POSITIONAL)


class InvalidHandlerError(TocsinError, TypeError):
    """This function cannot run a task; the text says why and what would be right."""

    code = "invalid-handler"


class WrongInputError(TocsinError, TypeError):
    """A task's input or args do not fit its handler's parameters."""

    code = "invalid-input"


def check_name(name: object) -> None:
    """Refuse what names no function, e.g. the handler itself where parentheses were forgotten.

    Raises:
        InvalidHandlerError: it is no text, or empty.
    """
    if not isinstance(name, str) or not name:
        raise InvalidHandlerError('name the function that it runs: @worker.task("<function>")')


def check(function: Callable[..., object]) -> None:
    """Refuse what cannot be a handler.

    Raises:
        InvalidHandlerError: it is a generator, or takes no context.
    """
    if not callable(function):
        raise InvalidHandlerError(f'{function!r} is no function: write @worker.task("<function>") above one')
    called = f"{name_of(function)}()"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidHandlerError(f"{called} is a generator: a handler returns its result, it yields nothing")
    first = next(iter(_signature(function).parameters.values()), None)
    if first is None or first.kind not in _POSITIONAL:
        raise InvalidHandlerError(f"{called} takes no context: its first parameter must be the Context, positional")


def is_async(function: Callable[..., object]) -> bool:
    """Whether calling it gives something to await, for functions and for objects that can be called."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def parameters_of(function: Callable[..., object]) -> Signature | None:
    """What it takes besides the context; None: nothing, so that a task's input needs not be bound at all."""
    signature = _signature(function)
    first, *others = signature.parameters.values()
    if first.kind is Parameter.VAR_POSITIONAL:
        return Signature([first, *others])
    return Signature(others) if others else None


def bind(
    parameters: Signature, args: Sequence[JsonValue], given: Mapping[str, JsonValue]
) -> tuple[tuple[JsonValue, ...], dict[str, JsonValue]]:
    """The positional and keyword arguments for a handler: the task's args in order, its input's keys by name.

    Raises:
        WrongInputError: something is missing, unknown, or given twice.
    """
    try:
        bound = parameters.bind(*args, **given)
    except TypeError as error:
        raise WrongInputError(f"{error}; the handler takes {_shape(parameters)}") from None
    return bound.args, bound.kwargs


def name_of(function: Callable[..., object]) -> str:
    """A function's name for people."""
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def _signature(function: Callable[..., object]) -> Signature:
    try:
        return inspect.signature(function)
    except ValueError as error:  # some builtins have none
        raise InvalidHandlerError(f"{name_of(function)}() hides its parameters: wrap it in a function") from error


def _shape(parameters: Signature) -> str:
    bare = [p.replace(annotation=Parameter.empty) for p in parameters.parameters.values()]
    return str(Signature([Parameter("context", Parameter.POSITIONAL_ONLY), *bare])).replace("context, /", "context")
