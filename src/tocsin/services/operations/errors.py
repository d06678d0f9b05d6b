"""Why an operation is not done. The text is for whoever asked."""

from ...domain.errors import TocsinError


class OperationError(TocsinError):
    """What is asked for cannot be done as things are."""

    code = "not-possible"


class NotFound(OperationError):
    """There is no such execution or dead letter."""

    code = "not-found"


class NotAnId(OperationError):
    """What is given can be the id of nothing."""

    code = "invalid-id"


class Ambiguous(OperationError):
    """What is given is the beginning of several ids; `meant` are some of them."""

    code = "ambiguous-id"

    def __init__(self, given: str, kind: str, meant: tuple[str, ...]) -> None:
        super().__init__(f"{given!r} is the beginning of several {kind}: {', '.join(meant)}")
        self.meant = meant
