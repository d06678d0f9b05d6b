"""A command written as one line of text, as an argument vector.

Quotes and backslashes work as in a shell, and nothing else does: no shell runs. A line with an operator of the shell is
refused, because the program would get it as an argument.
"""

import shlex
from collections.abc import Sequence
from typing import Final

from ..errors import TocsinError

_OPERATORS: Final = "();<>|&"


class CommandLineError(TocsinError, ValueError):
    """A line that is not the argument vector of one program."""

    code = "invalid-command-line"


def split_command(text: str) -> list[str]:
    """Return the program and the arguments in a line.

    Raises:
        CommandLineError: the line is empty, has an open quote, or needs a shell.
    """
    try:
        words, parts = shlex.split(text), _parts(text)
    except ValueError:
        raise CommandLineError("a quotation mark is never closed, or a backslash ends the line") from None
    if not words:
        raise CommandLineError("it is empty: write a program and its arguments")
    if words != parts or any(word and not word.strip(_OPERATORS) for word in words):
        raise CommandLineError(
            f"no shell runs, so none of {' '.join(_OPERATORS)} works as an operator: name one program, such as "
            "`/bin/sh -c 'first | second'`"
        )
    return words


def join_command(arguments: Sequence[str]) -> str | None:
    """Return the line that reads back as these arguments, or None."""
    text = shlex.join(arguments)
    try:
        return text if split_command(text) == [*arguments] else None
    except CommandLineError:
        return None


def _parts(text: str) -> list[str]:
    """Split as a shell does that knows operators outside quotes."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace_split = True
    lexer.commenters = ""
    return list(lexer)
