"""Errors of the Python client. Each has a stable `code`."""

from pydantic import JsonValue

from ..domain.definition import show
from ..domain.errors import TocsinError
from ..domain.events import Failure


class InvalidArgument(TocsinError, ValueError):
    """An argument of the client is invalid."""

    code = "invalid-argument"

    def __init__(self, argument: str, value: object, reason: str) -> None:
        super().__init__(f"`{argument}` is {show(value)}: {reason}")
        self.argument = argument
        self.value = value


class ClientClosed(TocsinError):
    """The client is not open: it was closed, or was never opened."""

    code = "client-closed"


class CountersUnknown(TocsinError):
    """The history cannot say how often a job ran."""

    code = "counters-unknown"

    def __init__(self, job: str) -> None:
        super().__init__(
            f"the counters of job {show(job)} are unknown: the history is incomplete until `tocsin history rebuild` has ended, or, "
            "over HTTP, it is unavailable, the token may not read executions, or the API is older than the counters"
        )
        self.job = job


class WrongContext(TocsinError):
    """The client belongs to another event loop, thread or process."""

    code = "wrong-context"


class RunFailed(TocsinError):
    """The run failed."""

    code = "run-failed"

    def __init__(self, execution_id: str, error: Failure, failed_step: str | None, shard: str | None = None) -> None:
        """Describe the failure of an execution.

        Args:
            execution_id: the execution; of a divided job, that on `shard`.
            error: the error of the last attempt, or the reason why the execution was ended.
            failed_step: the step that failed; None: the execution was ended as a whole.
            shard: the shard that failed; None: the job is not divided.
        """
        place = "" if failed_step is None else f" in step {failed_step!r}"
        on = "" if shard is None else f" on shard {shard!r}"
        super().__init__(f"execution {execution_id} failed{place}{on}: {error.type}: {error.message}")
        self.execution_id = execution_id
        self.error = error
        self.failed_step = failed_step
        self.shard = shard


class RunCancelled(TocsinError):
    """The run was cancelled, by a user or by the overlap policy of its job."""

    code = "run-cancelled"

    def __init__(self, execution_id: str, reason: str | None) -> None:
        super().__init__(f"execution {execution_id} was cancelled" + (f": {reason}" if reason else ""))
        self.execution_id = execution_id
        self.reason = reason


class RunSkipped(TocsinError):
    """The run did not begin.

    `reason` is that of the event `skipped`, such as `overlap_skip`. If it is `refused`, `refusal` is the code of the error.
    """

    code = "run-skipped"

    def __init__(self, execution_id: str, reason: str, refusal: str | None = None, text: str = "") -> None:
        detail = f": {text}" if text else ""
        super().__init__(f"execution {execution_id} did not run ({reason}){detail}")
        self.execution_id = execution_id
        self.reason = reason
        self.refusal = refusal


class RunTimeout(TocsinError, TimeoutError):
    """The run has not ended within the timeout of the caller. It continues."""

    code = "run-timeout"

    def __init__(self, execution_id: str, timeout: float, cause: Exception | None) -> None:
        """Describe the wait.

        `timeout`: its seconds. `cause`: the error of the last look at the run, if it failed.
        """
        text = f"execution {execution_id} has not ended within {timeout:g} seconds"
        super().__init__(text if cause is None else f"{text}, and the last look at it failed: {cause}")
        self.execution_id = execution_id
        self.timeout = timeout


class ResultExpired(TocsinError):
    """The run completed, but neither the log nor the archive still has its events.

    `results` has what the history kept: the result of each step.
    """

    code = "result-expired"

    def __init__(self, execution_id: str, results: dict[str, JsonValue]) -> None:
        super().__init__(
            f"execution {execution_id} completed, but its events are in neither the log nor the archive any more. "
            "Read the results of its steps with results()"
        )
        self.execution_id = execution_id
        self.results = results
