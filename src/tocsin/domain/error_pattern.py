"""Errors of one kind: their text without numbers, ids and hexadecimal digits."""

import re
from typing import Final

MAX_TEXT: Final = 300
"""Characters of an error that make its pattern."""
ID: Final = "<id>"
HEX: Final = "<hex>"
NUMBER: Final = "<n>"

_VARIABLE: Final = re.compile(
    r"(?P<id>\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b)"
    r"|(?P<hex>\b0x[0-9a-f]+\b|\b(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{6,}\b)"
    r"|(?P<number>[0-9]+(?:[.,:][0-9]+)*)",
    re.IGNORECASE | re.ASCII,
)
_PLACEHOLDERS: Final = {"id": ID, "hex": HEX, "number": NUMBER}


def error_pattern(error: str) -> str:
    """Return an error's first line, with placeholders for numbers, ids and hexadecimal texts."""
    line = error[:MAX_TEXT].partition("\n")[0].rstrip()
    return _VARIABLE.sub(lambda match: _PLACEHOLDERS[match.lastgroup or ""], line)
