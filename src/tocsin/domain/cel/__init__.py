"""Expressions in CEL (Common Expression Language): compiled once, and bounded in work before they run."""

from .bounds import MAX_EVENT_BYTES
from .expression import EvaluationFailed, Event, ExpressionError, compile_

__all__ = [
    "MAX_EVENT_BYTES",
    "EvaluationFailed",
    "Event",
    "ExpressionError",
    "compile_",
]
