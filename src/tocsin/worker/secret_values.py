"""The secrets of a task."""

import json
from collections.abc import Collection
from typing import Final, cast
from urllib.parse import quote

from pydantic import JsonValue

from ..domain.events import Dispatched, Input
from ..domain.secret_reference import (
    SecretNotAllowedError,
    is_allowed,
    reference,
    resolve_references,
)
from ..services.machine_secrets import read_secret

_SHORTEST_SECRET: Final = 4
"""The number of characters from which a value is redacted. A shorter value occurs by chance in any text."""
_SHORTEST_LINE: Final = 8
"""The number of characters from which a line of a value is redacted too. A key has long lines, and a brace alone is no secret."""


class SecretValues:
    """The secrets of one task.

    Resolved for its handler, and redacted from results and from the text of errors.
    """

    __slots__ = ("_allowed", "_lines", "_references")

    def __init__(self, allowed: Collection[str]) -> None:
        """Resolve the names in `allowed` only.

        Each author of a job may write any name into its definition.
        """
        self._allowed = allowed
        self._references: dict[str, str] = {}
        self._lines: dict[str, dict[str, str]] = {}
        """Lines of values and the references of the values, by the beginnings of the lines."""

    def resolve(self, task: Dispatched) -> tuple[Input, tuple[JsonValue, ...]]:
        """Return the task's input and args with every reference replaced.

        Raises:
            SecretReferenceError: a reference is malformed, this worker does not allow its name, or does not have the
                secret.
        """
        input_ = cast("Input", resolve_references(task.input, self.look_up)) if task.input else task.input
        if not task.args:
            return input_, ()
        return input_, tuple(cast("list[JsonValue]", resolve_references(list(task.args), self.look_up)))

    def redact(self, text: str) -> str:
        """Replace each resolved value by its reference.

        The value may be plain, or written as in `repr`, in JSON or in a URL. Of a value with several lines, such as a key, each longer
        line is replaced by itself too, because a program's output is kept line by line.
        """
        text = self.redact_values(text)
        return self._without_lines(text) if self._lines else text

    def redact_values(self, text: str) -> str:
        """Replace each whole value as `redact` does, and no lines of it.

        For what later steps and attempts use: a certificate begins with the same line as any other.
        """
        for value in sorted(self._references, key=len, reverse=True):
            text = text.replace(value, self._references[value])
        return text

    def _without_lines(self, text: str) -> str:
        """Replace the lines of values.

        A value may have thousands, and a program writes many lines to look at.
        """
        parts, end, at = list[str](), 0, 0
        while at <= len(text) - _SHORTEST_LINE:
            known = self._lines.get(text[at : at + _SHORTEST_LINE], {})
            line = max((line for line in known if text.startswith(line, at)), key=len, default=None)
            if line is None:
                at += 1
                continue
            parts += [text[end:at], known[line]]
            end = at = at + len(line)
        return "".join((*parts, text[end:]))

    def has_secret(self, text: str) -> bool:
        """Return whether a text has a whole value.

        A line of a value may be any text.
        """
        return any(value in text for value in self._references)

    def look_up(self, name: str) -> str | None:
        """Return a secret, which is redacted from now on; None: it does not exist.

        Raises:
            SecretReferenceError: this worker does not allow its name, or its file cannot be used.
        """
        if not is_allowed(name, self._allowed):
            raise SecretNotAllowedError(
                f"the input refers to `{name}`, which this worker does not allow; write `Worker(secrets=[{name!r}])`, or start "
                f"it with `--secret {name}`"
            )
        value = read_secret(name)
        if value is not None and len(value) >= _SHORTEST_SECRET:
            written = (repr(value)[1:-1], json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
            self._references |= dict.fromkeys((value, *written, quote(value, safe="")), reference(name))
            for each in value.splitlines():
                if len(line := each.strip()) >= _SHORTEST_LINE and line != value:
                    self._lines.setdefault(line[:_SHORTEST_LINE], {})[line] = reference(name)
        return value
