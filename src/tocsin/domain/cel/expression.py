"""Expressions over an event, compiled by Google's implementation of CEL.

    body.total > 100 && subject.startsWith("orders.")      body.items.exists(i, i.sku == "A-1")

The library checks types, stops deep nesting and long macros by itself, and searches by RE2, which takes linear time. What it does not
bound is refused here by a bound on the work (`bounds`). An expression reads the event and nothing else: no files, no clock, no network.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue

from ..errors import TocsinError
from . import bounds, syntax_tree

if TYPE_CHECKING:
    from cel_expr_python import cel

MAX_CHARACTERS: Final = 1_000
"""Characters of an expression."""
VARIABLES: Final = ("body", "headers", "subject", "time")
"""The names that an expression may use: the parts of an event."""
DETAILS: Final[Mapping[str, tuple[str, ...]]] = {
    "kv": ("operation", "key", "revision"),
    "object": ("operation", "object"),
}
"""The names that expressions over the events of some sources may use too."""
_MAX_REASON: Final = 300
"""Characters of a reason that is passed on."""


class ExpressionError(TocsinError, ValueError):
    """An expression cannot be compiled, or may cost too much."""

    code = "invalid-expression"


class EvaluationFailed(TocsinError):
    """An expression has no value for an event."""

    code = "evaluation-failed"


@dataclass(frozen=True, slots=True)
class Event:
    """An event, as expressions see it."""

    body: JsonValue
    subject: str
    headers: Mapping[str, str]
    time: datetime
    details: Mapping[str, JsonValue] = field(default_factory=dict)
    """The values of `DETAILS` of its source."""

    @property
    def variables(self) -> dict[str, object]:
        common = {"body": self.body, "subject": self.subject, "headers": dict(self.headers), "time": self.time}
        return {**common, **self.details}


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression."""

    text: str
    program: "cel.Expression"
    type: str
    """The type of its value, such as `BOOL`; `DYN`: it depends on the event."""

    def evaluate(self, event: Event) -> object:
        """Return the value for an event; JSON may not know its type.

        Raises:
            EvaluationFailed: the expression has no value for it.
        """
        try:
            value = self.program.eval(data=event.variables)
            result = value.plain_value()
        except RuntimeError as error:  # the only exception of the library
            raise EvaluationFailed(_reason(error)) from None
        if value.type().name() == "ERROR":
            raise EvaluationFailed(_reason(result))
        return result


@lru_cache(4_096)
def compile_(text: str, source: str = "") -> Expression:
    """Compile an expression over the events of a kind of source, once for each text.

    Raises:
        ExpressionError: it is not CEL, or not allowed.
    """
    if not text.strip():
        raise ExpressionError("is empty: write an expression, such as `body.id`")
    if len(text) > MAX_CHARACTERS:
        raise ExpressionError(f"has {len(text):,} characters, more than {MAX_CHARACTERS:,}: use less of the event")
    try:
        environment = _environment(DETAILS.get(source, ()))
        program = environment.compile(text)
        for pattern in bounds.check(syntax_tree.read(program.serialize())):
            _check_regex(environment, pattern)
    except (RuntimeError, ValueError) as error:
        raise ExpressionError(_reason(error)) from None
    return Expression(text, program, program.return_type().name())


def _check_regex(environment: "cel.Env", pattern: str) -> None:
    """Check a regular expression, which the library compiles at an evaluation only."""
    value = environment.compile(f'"".matches({json.dumps(pattern)})').eval(data={})
    if value.type().name() == "ERROR":
        raise ValueError(value.plain_value())


@cache
def _environment(details: tuple[str, ...]) -> "cel.Env":
    try:
        from cel_expr_python import cel  # noqa: PLC0415 - 15 MB that most processes do not need
    except ImportError:
        raise ExpressionError(
            "needs the extra `server`, which compiles it. Install it with: pip install 'tocsin[server]'"
        ) from None
    types = cel.Type
    return cel.NewEnv(
        variables={
            "body": types.DYN,
            "headers": types.Map(types.STRING, types.STRING),
            "subject": types.STRING,
            "time": types.TIMESTAMP,
            **{name: {"revision": types.INT, "object": types.DYN}.get(name, types.STRING) for name in details},
        }
    )


def _reason(error: object) -> str:
    """Return the first problem of a message of the library, in one line."""
    first = str(error).partition("\n")[0].removeprefix("INVALID_ARGUMENT: ").removeprefix("ERROR: <input>:")
    return first[:_MAX_REASON]
