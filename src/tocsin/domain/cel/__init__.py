"""Expressions in CEL (Common Expression Language): compiled once, and bounded in work before they run."""

from .bounds import MAX_EVENT_BYTES, MAX_WORK_NS
from .expression import MAX_CHARACTERS, VARIABLES, EvaluationFailed, Event, Expression, ExpressionError, compile_

__all__ = [
    "MAX_CHARACTERS",
    "MAX_EVENT_BYTES",
    "MAX_WORK_NS",
    "VARIABLES",
    "EvaluationFailed",
    "Event",
    "Expression",
    "ExpressionError",
    "compile_",
]
