"""Errors that several ports raise."""

from ..domain.errors import TocsinError


class OutdatedState(TocsinError):
    """A decision was made on outdated state. Read again, then decide again."""

    code = "conflict"


class SequenceConflict(OutdatedState):
    """Another writer appended to the scope first."""


class StaleRead(OutdatedState):
    """A lagging replica answered a read."""

    code = "stale-read"

    @classmethod
    def of(cls, scope: str) -> "StaleRead":
        """Return the error for a read of a scope, or of a subject."""
        return cls(f"The read of {scope} is stale: a lagging replica answered. Read it again.")


class LogUnavailable(TocsinError):
    """The log did not answer, and the outcome of the request is unknown.

    Redelivery and the guards make a retry safe.
    """

    code = "log-unavailable"


class NotAllowed(LogUnavailable):
    """The log denies a request of this client.

    The permissions may change, so that no work is dropped for this reason.
    """

    code = "not-allowed"


class RequestRefused(TocsinError):
    """The server refused a request, and would refuse it again.

    `description` is the reason in the server's words.
    """

    code = "request-refused"

    def __init__(self, message: str, description: str) -> None:
        super().__init__(message)
        self.description = description


class Unreachable(TocsinError):
    """NATS, or what an installation needs in it, does not exist or does not answer."""

    code = "unreachable"
