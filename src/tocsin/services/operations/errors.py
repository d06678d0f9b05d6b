"""Errors of operations. Their texts are shown to the caller."""

from ...domain.definition import MAX_INPUT_BYTES
from ...domain.errors import TocsinError


class OperationError(TocsinError):
    """The state of the installation does not allow an operation."""

    code = "not-possible"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or type(self).code


class NotFound(OperationError):
    """No execution, dead letter, queue or agent matches."""

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


class SharedId(Ambiguous):
    """Dead letters of several jobs have the same id; `matches` are the jobs.

    A client brought the id that an execution of another job has.
    """

    def __init__(self, given: str, jobs: tuple[str, ...]) -> None:
        text = f"several jobs have a dead letter {given}: {', '.join(jobs)}. Name the job (`--job`, or `job` in a request)."
        OperationError.__init__(self, text)
        self.matches = jobs


class ResultTooLarge(OperationError):
    """A result is larger than the limit. The attempt has failed for good."""

    code = "result-too-large"

    @classmethod
    def of(cls, size: int) -> "ResultTooLarge":
        """Return the error of a result of `size` bytes."""
        limit = f"{size:,} bytes of JSON, more than {MAX_INPUT_BYTES:,}"
        return cls(f"The result is {limit}. Keep large data in a store and refer to it.")


class JobTooLarge(OperationError):
    """A job that is not registered is larger than a request may be."""

    code = "job-too-large"

    @classmethod
    def of(cls, size: int, limit: int) -> "JobTooLarge":
        """Return the error of a job whose request has `size` bytes."""
        reason = f"The job has {size:,} bytes as a request, more than {limit:,}."
        return cls(f"{reason} Keep large data in a store and refer to it.")


class FetchTooLarge(OperationError):
    """A fetch names too many queues, or its token too many functions."""

    code = "fetch-too-large"


class MatcherUnavailable(OperationError):
    """No matcher answers a fetch."""

    code = "matcher-unavailable"


class TooManyFetches(OperationError):
    """As many fetches as the matcher allows wait for tasks."""

    code = "too-many-fetches"
