"""What a handler raises to say more than that it failed."""

from ..domain.errors import TocsinError


class NonRetryableError(TocsinError):
    """This attempt failed and another one would too: the step is exhausted at once (hip-62, Retry Policy)."""

    code = "non-retryable"
