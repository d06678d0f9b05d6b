"""What can go wrong with more than one port."""

from ..domain.errors import TocsinError


class OutdatedState(TocsinError):
    """A decision was made on state that is not the newest. Read again, then decide again."""

    code = "conflict"


class SequenceConflict(OutdatedState):
    """Another writer appended to the scope first."""


class StaleRead(OutdatedState):
    """A lagging replica answered a read."""

    code = "stale-read"


class LogUnavailable(TocsinError):
    """The log did not answer; whether it stored what was sent is unknown. Redelivery and the guards sort it out."""

    code = "log-unavailable"


class NotAllowed(LogUnavailable):
    """The log does not let this client do what it asked. Its rules may change, so that no work is given up for it."""

    code = "not-allowed"
