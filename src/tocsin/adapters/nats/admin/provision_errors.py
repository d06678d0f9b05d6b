"""The errors of provisioning: what stands between the server and the needed state."""

from collections.abc import Mapping

from ....domain.errors import TocsinError
from ....ports import LogUnavailable


class ProvisionError(TocsinError):
    """The server cannot be brought into the needed state; the text says what to do."""

    code = "provisioning-failed"


class JetStreamUnavailable(ProvisionError, LogUnavailable):
    """JetStream does not answer: its server is overloaded, or its cluster has no majority."""

    code = "jetstream-unavailable"


class JetStreamDisabled(ProvisionError, LogUnavailable):
    """JetStream is not enabled on the server, or not for the account of this user."""

    code = "jetstream-not-enabled"


class ServerTooOld(ProvisionError):
    """The server has `version`, which is older than the `needed` version."""

    code = "nats-server-too-old"

    def __init__(self, message: str, *, version: str, needed: str) -> None:
        super().__init__(message)
        self.version = version
        self.needed = needed


class StreamRejected(ProvisionError):
    """The server does not create, change or show a stream."""

    code = "stream-rejected"

    def __init__(self, message: str, *, stream: str, reason: str) -> None:
        super().__init__(message)
        self.stream = stream
        self.reason = reason  # the server's words


class StreamUnchangeable(ProvisionError):
    """A stream has values that the server cannot change."""

    code = "stream-unchangeable"

    def __init__(self, message: str, *, stream: str, fields: Mapping[str, tuple[object, object]]) -> None:
        super().__init__(message)
        self.stream = stream
        self.fields = fields  # the stored and the needed value of each


class SubjectsOverlap(ProvisionError):
    """Another stream, `other`, captures subjects of `stream`."""

    code = "subjects-overlap"

    def __init__(self, message: str, *, stream: str, other: str | None = None, subject: str | None = None) -> None:
        super().__init__(message)
        self.stream = stream
        self.other = other
        self.subject = subject


class MessagesAtRisk(ProvisionError):
    """Lower limits would remove stored messages."""

    code = "messages-at-risk"

    def __init__(self, streams: Mapping[str, str]) -> None:
        losses = "; ".join(f"stream {name}: {loss}" for name, loss in streams.items())
        super().__init__(
            f"stored messages would be removed, and nothing was changed: {losses}. "
            "Raise the limits in the settings, or repeat with `--drop-messages`."
        )
        self.streams = streams  # the loss of each
