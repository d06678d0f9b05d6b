"""Registered handlers: which functions are accepted, and how a task's input becomes their arguments."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import ClassVar, Final, TypeAlias

from pydantic import JsonValue

from ..domain.errors import TocsinError
from .builtin_call import BuiltinCall

BuiltinFunction: TypeAlias = Callable[[BuiltinCall], Awaitable[JsonValue]]
_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.VAR_POSITIONAL)


class InvalidHandlerError(TocsinError, TypeError):
    """A function cannot be a handler; the text says why and how to correct it."""

    code = "invalid-handler"


class HandlerExistsError(TocsinError, ValueError):
    """Another function is registered under the same name."""

    code = "handler-exists"


class WrongInputError(TocsinError, TypeError):
    """A task's input or args do not fit its handler's parameters."""

    code = "invalid-input"
    retryable: ClassVar[bool] = False
    """Whether another attempt may succeed, because another worker may have a handler that fits."""


class InvalidResultError(TocsinError, TypeError):
    """A handler's result does not fit its annotation."""

    code = "invalid-result"


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered function and the properties of its signature."""

    name: str
    function: Callable[..., object]
    is_async: bool
    parameters: Signature | None
    """The parameters after the context; None if it takes only the context, so that no input is bound."""
    is_builtin: bool = False
    """It takes a `BuiltinCall` instead of a context."""


class Handlers(dict[str, Handler]):
    """The handlers of one worker by function name, in order of registration."""

    def add(self, name: str, function: Callable[..., object]) -> None:
        """Register a handler.

        Raises:
            InvalidHandlerError: the function cannot be a handler, or the name is not a text.
            HandlerExistsError: another function has the name.
        """
        check_name(name)
        parameters = _parameters_of(function)
        if (other := self.get(name)) is not None:
            registered, rejected = _name_of(other.function), _name_of(function)
            raise HandlerExistsError(
                f"{name!r} is already registered for {registered}(), so {rejected}() cannot have it. Choose another name."
            )
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is async
        )
        self[name] = Handler(name, function, is_async, parameters)

    def add_builtin(self, name: str, function: BuiltinFunction) -> None:
        """Register a built-in function."""
        self[name] = Handler(name, function, is_async=True, parameters=None, is_builtin=True)


def check_name(name: object) -> None:
    """Reject a name that is not a text.

    `@worker.task` without parentheses passes the handler itself as the name.

    Raises:
        InvalidHandlerError: it is not a text, or empty.
    """
    if not isinstance(name, str) or not name:
        raise InvalidHandlerError('The name of the function is missing. Write @worker.task("<function>").')


def bind(
    parameters: Signature, args: Sequence[JsonValue], given: Mapping[str, JsonValue]
) -> tuple[tuple[JsonValue, ...], dict[str, JsonValue]]:
    """Return a handler's positional and keyword arguments.

    The task's args in order, its input's keys by name.

    Raises:
        WrongInputError: an argument is missing, unknown, or passed twice.
    """
    try:
        bound = parameters.bind(*args, **given)
    except TypeError as error:
        raise WrongInputError(f"{error}; the handler takes {_shape(parameters)}") from None
    return bound.args, bound.kwargs


def _parameters_of(function: Callable[..., object]) -> Signature | None:
    """Return the parameters after the context; refuse what cannot be a handler."""
    if not callable(function):
        raise InvalidHandlerError(f'{function!r} is not a function. Write @worker.task("<function>") above a function.')
    name = f"{_name_of(function)}()"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidHandlerError(f"{name} is a generator. A handler must return its result instead of yielding.")
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except ValueError as error:  # some built-in functions have no signature
        raise InvalidHandlerError(
            f"The parameters of {name} are unknown. Wrap it in a function of your own."
        ) from error
    if not parameters or parameters[0].kind not in _POSITIONAL:
        raise InvalidHandlerError(f"{name} takes no context. Its first parameter must be the Context, positional.")
    if parameters[0].kind is not Parameter.VAR_POSITIONAL:
        del parameters[0]
    return Signature(parameters) if parameters else None


def _name_of(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def _shape(parameters: Signature) -> str:
    bare = [p.replace(annotation=Parameter.empty) for p in parameters.parameters.values()]
    return str(Signature([Parameter("context", Parameter.POSITIONAL_ONLY), *bare])).replace("context, /", "context")
