"""Faults in YAML, in words without the text, which may hold secrets."""

import re
from typing import Final

_QUOTED: Final = re.compile(r""" ['"][^<'"][^'"].*""", re.DOTALL)
"""A text of more than one character that PyYAML quotes: a name, a tag or a part of a value. Marks such as `<block end>` are its own words."""


def problem_of(text: str) -> str:
    """Return a problem as PyYAML states it, up to the first text that it quotes."""
    return _QUOTED.sub("", text)


def fault_of(error: Exception) -> str:
    """Return the place and the kind of a fault that PyYAML raised.

    It also raises errors of Python, whose texts quote the value.
    """
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        return "a value or a character does not fit"
    problem = getattr(error, "problem", None) or getattr(error, "context", None) or "wrong syntax"
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem_of(problem)}"
