"""The secrets of one task: put into its input as the last thing before the work, and kept out of everything else."""

import os
from collections.abc import Callable
from typing import Final, cast

from pydantic import JsonValue

from ..domain.events import Dispatched, Input
from ..domain.secret_reference import resolve_references

_TOO_SHORT_TO_TELL: Final = 4
"""Characters below which a value would be found by chance in any text."""


class SecretValues:
    """What references were resolved to, remembered so that the text of an error does not carry it into the log."""

    __slots__ = ("_lookup", "_references")

    def __init__(self, lookup: Callable[[str], str | None] = os.environ.get) -> None:
        """Resolve names with `lookup`, which answers None for what is not set."""
        self._lookup = lookup
        self._references: dict[str, str] = {}

    def resolve(self, task: Dispatched) -> tuple[Input, tuple[JsonValue, ...]]:
        """The task's input and args with every reference replaced.

        Raises:
            SecretReferenceError: a reference is malformed, or names what this environment does not set.
        """
        given = cast("Input", resolve_references(task.input, self._look_up)) if task.input else task.input
        if not task.args:
            return given, ()
        return given, tuple(cast("list[JsonValue]", resolve_references(list(task.args), self._look_up)))

    def redact(self, text: str) -> str:
        """The text with every resolved value, plain or as `repr` shows it, turned back into its reference."""
        for value in sorted(self._references, key=len, reverse=True):
            text = text.replace(value, self._references[value])
        return text

    def _look_up(self, name: str) -> str | None:
        value = self._lookup(name)
        if value is not None and len(value) >= _TOO_SHORT_TO_TELL:
            self._references[value] = self._references[repr(value)[1:-1]] = f"${{env:{name}}}"
        return value
