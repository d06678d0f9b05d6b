"""Texts and JSON that every database can store."""

import re
from typing import Final

from pydantic_core import to_json

_NUL: Final = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")


def json_text(value: object) -> str:
    """Return JSON without NaN, infinity and U+0000."""
    encoded = to_json(value, inf_nan_mode="null")
    if b"\\u0000" in encoded:
        encoded = _NUL.sub(rb"\1\\ufffd", encoded)
    return encoded.decode()


def plain(text: str | None) -> str | None:
    """Return a text without U+0000."""
    return text.replace("\0", "\ufffd") if text is not None and "\0" in text else text
