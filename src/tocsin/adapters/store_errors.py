"""The error of stores outside this machine."""

from ..domain.errors import TocsinError


class StoreUnavailable(TocsinError):
    """A store does not answer, or refuses a request."""

    code = "store-unavailable"
