"""Base class of every error that Tocsin raises on purpose."""


class TocsinError(Exception):
    """An error of Tocsin.

    `code` is stable and documented; the text of the error may change.
    """

    code: str = "internal-error"
