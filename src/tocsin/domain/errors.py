"""Base class of every error that Tocsin raises on purpose."""

from collections.abc import Mapping
from typing import ClassVar


class TocsinError(Exception):
    """An error of Tocsin.

    `code` is stable and documented; the text of the error may change.
    """

    code: str = "internal-error"
    codes: ClassVar[Mapping[str, str]] = {}
    """The meaning of each code, in a class whose errors have one of several codes."""
