"""Errors of operations. Their texts are shown to the caller."""

from collections.abc import Mapping
from typing import ClassVar, Final

from ...domain.definition import MAX_INPUT_BYTES
from ...domain.errors import TocsinError

_MEANINGS: Final[Mapping[str, str]] = {
    "dead-letter-archived": "A dead letter, or the results of its execution, were archived, so it cannot be replayed as requested.",
    "dead-letter-resolved": "A dead letter is resolved. `again` replays it once more.",
    "empty-span": "The end of a backfill is not later than its start.",
    "future-span": "A backfill ends in the future.",
    "held-by-other": "Another identity or another worker fetched the task that a request answers.",
    "held-by-own-worker": "A worker over NATS has the task that a request over HTTP answers.",
    "input-not-accepted": "A replay of this kind takes no other input.",
    "job-exists": "`CREATE JOB` names a job that exists with another definition.",
    "job-not-registered": "A dead letter belongs to a job that is not registered.",
    "no-calendar": "A backfill of a job whose schedule counts from its last run, which names no past instants.",
    "no-schedule": "A backfill of a job without a schedule.",
    "no-steps": "A replay of the failed steps of a message, which has none.",
    "not-planned": "An execution is cancelled that is requested, and that no stage has planned yet.",
    "not-possible": "The state of the installation does not allow an operation, for a reason that has no code of its own.",
    "not-replayable": "The job does not accept the input of a dead letter.",
    "nothing-to-replay": "A replay of failed steps, of which none is left.",
    "replay-open": "The replay of a dead letter is not over.",
    "too-many-instants": "A backfill has more instants than the limit.",
    "too-many-paused-queues": "As many queues as the limit allows are paused that no setting and no job names.",
}


class OperationError(TocsinError):
    """The state of the installation does not allow an operation."""

    code = "not-possible"
    codes: ClassVar[Mapping[str, str]] = _MEANINGS

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


class InvalidResult(OperationError):
    """A result cannot be stored. The attempt has failed for good."""

    code = "invalid-result"


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


class NotServed(TocsinError):
    """The HTTP API has no request for this operation."""

    code = "not-served-over-http"

    def __init__(self, operation: str) -> None:
        super().__init__(f"{operation} is not served over HTTP: leave --server out, and name the NATS server")
        self.operation = operation
