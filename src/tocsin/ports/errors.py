"""Errors that several ports raise."""

from collections.abc import Iterable

from ..domain.errors import TocsinError
from ..subjects import LAYOUT


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


class NotPermitted(TocsinError):
    """The token, or the NATS user, does not permit the operation."""

    code = "not-permitted"


class NotAllowed(LogUnavailable, NotPermitted):
    """The log denies a request of this client.

    The permissions may change, so that no work is dropped for this reason. `subject` is where this client may not publish, or
    what it may not subscribe to; `remedy` is the setting to change, if there is one.
    """

    code = NotPermitted.code

    def __init__(self, text: str, *, subject: str = "", remedy: str = "") -> None:
        super().__init__(text)
        self.subject = subject
        self.remedy = remedy


class ArchiveUnavailable(LogUnavailable):
    """The store of the archive does not answer, or refuses a request.

    Nothing leaves the streams meanwhile.
    """

    code = "archive-unavailable"


class NoResponder(LogUnavailable):
    """No server answers requests on a subject: a replica lags, or JetStream is not there.

    `subject`: where the request went.
    """

    code = "no-responder"

    def __init__(self, subject: str) -> None:
        super().__init__(f"{subject}: no server answers it")
        self.subject = subject


class ApiUnavailable(LogUnavailable):
    """The HTTP API of `--server` does not answer, or answers with an error."""

    code = "api-unavailable"


class LaggingReplica(LogUnavailable):
    """A replica answered that does not have a key yet which the leader has."""

    code = "lagging-replica"


class RequestRefused(TocsinError):
    """The server refused a request, and would refuse it again.

    `description` is the reason in the server's words.
    """

    code = "request-refused"

    def __init__(self, message: str, description: str) -> None:
        super().__init__(message)
        self.description = description


class RepeatedInput(TocsinError):
    """Of several inputs to store together, some were stored before: nothing was stored now."""

    code = "repeated-input"


class MessageTooLarge(RequestRefused):
    """A message with its headers is larger than the server accepts.

    It is never sent, because the server would close the connection.
    """

    code = "message-too-large"

    @classmethod
    def of(cls, subject: str, size: int, limit: int) -> "MessageTooLarge":
        """Return the error of a message of `size` bytes, of which the server accepts `limit`."""
        reason = f"the message has {size} bytes with its headers, and the server accepts {limit} (`max_payload`)"
        return cls(f"{subject}: {reason}", reason)


class Unreachable(TocsinError):
    """NATS, or what an installation needs in it, does not exist or does not answer."""

    code = "unreachable"


class NotInitialized(Unreachable):
    """The NATS server has no installation of this `root`."""

    code = "not-initialized"

    @classmethod
    def of(cls, root: str) -> "NotInitialized":
        """Return the error of an installation."""
        return cls(f"installation {root!r} is not initialized on this NATS server: run `tocsin init`")


class ConnectionEnded(Unreachable):
    """NATS ended the connection for good: a new process may connect again."""

    code = "connection-ended"

    @classmethod
    def of(cls, server: str, reason: str) -> "ConnectionEnded":
        """Return the error of a connection to `server` that it ended for `reason`."""
        return cls(f"{server} ended the connection for good: {reason}; start the process again")


class UnsupportedLayout(Unreachable):
    """The streams have another layout than this version of Tocsin needs.

    `reason` says which; `remedy` lists the steps.
    """

    code = "unsupported-layout"

    def __init__(self, stream: str, layout: int | None, *, streams: Iterable[str]) -> None:
        """Describe the first stream that does not fit, among all streams of the installation."""
        actual = "no layout number" if layout is None else f"layout {layout}"
        self.stream = stream
        self.reason = f"stream {stream} has {actual}, and this version of Tocsin needs layout {LAYOUT}"
        self.remedy = _steps(streams) if layout is None or layout < LAYOUT else "upgrade Tocsin"
        super().__init__(f"{self.reason}: {self.remedy}")


def _steps(streams: Iterable[str]) -> str:
    return f"""there is no migration.
  1. With the version of Tocsin that created the streams, run `tocsin jobs export --out jobs.yaml`.
     `tocsin events export --out log.jsonl.gz` keeps the old log for `tocsin audit --file log.jsonl.gz`.
  2. Set another `root`, `trigger_prefix`, `public_prefix` and `mq_prefix`, or delete all streams of this installation:
     {", ".join(streams)}
  3. Run `tocsin init`, then `tocsin jobs apply -f jobs.yaml`. Pause the jobs that `x-paused` in the file lists."""


class StoreUnavailable(TocsinError):
    """A store does not answer, or refuses a request."""

    code = "store-unavailable"
