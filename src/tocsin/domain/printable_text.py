"""Text of unknown origin, made safe for a terminal."""

from typing import Final

_TAB: Final = "    "


def printable(text: str) -> str:
    r"""Return a text with an escape for each character that does not print.

    Such characters move the cursor, change the terminal's state, or reverse the order of the text: those of control
    sequences (`\x1b`), of the writing direction (`\u202e`), and line breaks. Other kinds of blanks become blanks.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def printable_lines(text: str) -> str:
    """Return a text as `printable` does, but keep its line breaks."""
    if text.isprintable():
        return text
    return "\n".join(map(printable, text.split("\n")))


def _escaped(char: str) -> str:
    if char == "\t":
        return _TAB
    return " " if char.isspace() and char > "\x7f" else char.encode("unicode_escape").decode("ascii")
