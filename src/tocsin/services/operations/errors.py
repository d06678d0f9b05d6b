"""Errors of operations. Their texts are shown to the caller."""

from ...domain.errors import TocsinError


class OperationError(TocsinError):
    """The state of the installation does not allow an operation."""

    code = "not-possible"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or type(self).code


class NotFound(OperationError):
    """No execution or dead letter matches."""

    code = "not-found"


class NotAnId(OperationError):
    """A text cannot be an id."""

    code = "invalid-id"


class Ambiguous(OperationError):
    """A text is the beginning of several ids; `matches` are some of them."""

    code = "ambiguous-id"

    def __init__(self, given: str, kind: str, matches: tuple[str, ...]) -> None:
        super().__init__(f"{given!r} is the beginning of several {kind}: {', '.join(matches)}")
        self.matches = matches
