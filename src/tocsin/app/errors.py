"""Errors of signatures, and of inputs that do not fit them."""

from collections.abc import Mapping
from typing import ClassVar, Final, Literal, TypeAlias

from ..domain.errors import TocsinError
from ..worker.handlers import WrongInputError

SignatureCode: TypeAlias = Literal[
    "context-in-graph",
    "context-not-alone",
    "default-not-json",
    "not-a-function",
    "parameter-not-annotated",
    "parameter-not-named",
    "unknown-annotation",
    "unsupported-annotation",
]
_MEANINGS: Final[Mapping[str, str]] = {
    "context-in-graph": "The function of a graph takes the context, which only an attempt of a step has.",
    "context-not-alone": "A function takes the context more than once, or as a part of another type.",
    "default-not-json": "The default of a graph's parameter cannot be written as JSON.",
    "not-a-function": "A decorator of an application is not above a function, or above one that is decorated already.",
    "parameter-not-annotated": "A parameter has no annotation, so its type is unknown.",
    "parameter-not-named": "A parameter cannot be passed by name: `*args`, `**options`, or one before `/`.",
    "unknown-annotation": "An annotation names something that does not exist when the program runs.",
    "unsupported-annotation": "A parameter or a result has a type that JSON cannot express.",
}


class AppError(TocsinError):
    """An application is written wrongly, or its jobs clash with those of others."""

    code = "invalid-application"


class ConnectedElsewhereError(AppError, RuntimeError):
    """An application that is connected already is to use another connection."""

    code = "app-connected-elsewhere"

    def __init__(self, name: str) -> None:
        """Refuse a second connection, which triggers would not use."""
        super().__init__(
            f"the application `{name}` is connected already, and would use that connection. Leave its `app.connected()` first, or "
            "write it inside of `app.running()`"
        )


class SignatureError(AppError, TypeError):
    """A function cannot be a job or a step.

    `parameter` is the wrong parameter, or `return`.
    """

    code: str
    codes: ClassVar[Mapping[str, str]] = _MEANINGS

    def __init__(self, code: SignatureCode, function: str, reason: str, *, parameter: str | None = None) -> None:
        """Refuse a function; the reason says what to write instead."""
        place = f"{function}()" if parameter is None else f"`{parameter}` of {function}()"
        super().__init__(f"{place}: {reason}")
        self.code = code
        self.function = function
        self.parameter = parameter


class ArgumentsError(WrongInputError):
    """A task's input does not fit the function's annotations.

    Another worker may have the version of the code that the definition is for, so the attempt is retried.
    """

    retryable = True
