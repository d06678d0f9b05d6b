"""Events of the log of commits itself."""

from datetime import datetime
from typing import Final, TypeAlias

import msgspec

from .commit import RESTORED, CommitEvent, LogHead, Restoration, UnknownFormat
from .dependency import Run, Window
from .events import Foreign

PREFIX: Final = "log."
"""The beginning of their subjects. No stage decides on them."""


class Began(msgspec.Struct, frozen=True):
    """A process begins to decide for stages.

    It is stored only by a process that has folded the whole log. Its number names the term.
    """

    stages: tuple[str, ...]


class Left(msgspec.Struct, frozen=True):
    """A process ended terms by itself: it did not die.

    `terms`: the number of `Began`, by stage.
    """

    terms: dict[str, int]


class LeaderChange(msgspec.Struct, frozen=True):
    """A term of a stage that began or ended, as readers see it.

    `last_sign`: the last time (UTC) at which the leader before stored a commit.
    """

    number: int
    at: datetime
    holder: str
    begins: bool
    last_sign: datetime | None = None


class Trying(msgspec.Struct, frozen=True):
    """A process is about to make a decision of a stage.

    The event is stored before the decision, after processes died that led the stage.
    """

    stage: str
    place: str
    """The cause of a decision (`CommitEvent.cause`); a deadline's cause has its scope and key."""


class Poison(msgspec.Struct, frozen=True):
    """A decision fails again and again.

    The key of its cause gets an end by the events that follow.
    """

    stage: str
    place: str
    """As in `Trying`."""
    subject: str
    """The subject of the message that is decided on, or the scope of the deadline's state."""
    code: str
    """`poison`: it raises an error, or kills the process. `too-large`: it yields too much for a commit."""
    error: str


Name: TypeAlias = tuple[str, str, str, int, str]
"""The key of a waiting input: a stage, its durable, the source, its place there, and its subject.

The reports of a list have one place.
"""


class _OfInput(msgspec.Struct, frozen=True):
    stage: str
    durable: str
    source: str
    place: int
    subject: str = ""

    @property
    def name(self) -> Name:
        return self.stage, self.durable, self.source, self.place, self.subject


class Waits(_OfInput, frozen=True, kw_only=True):
    """An input waits: it cannot be decided yet, and counts as taken.

    Attributes:
        body: its content, as JSON.
        time: when the server stored it (UTC).
        until: when it is decided in any case (UTC).
        on: the scopes whose events it awaits.
    """

    body: msgspec.Raw
    time: datetime
    message_id: str | None
    until: datetime
    on: tuple[str, ...]


class Waited(_OfInput, frozen=True):
    """An input waits no longer.

    An event of an older log has no subject, and ends all inputs of its place.
    """


class NamedSnapshot(msgspec.Struct, frozen=True):
    """A snapshot of the fold is written.

    The event has its place in the log, the digest of its head, and the digests of its kinds of rows.
    """

    log: LogHead
    digest: str
    kinds: dict[str, str]


class RunFound(msgspec.Struct, frozen=True):
    """The last run of a job in a window, if any, as it was read."""

    job: str
    window: Window
    run: Run | None


LogEvent: TypeAlias = Began | Left | Trying | Poison | Waits | Waited | NamedSnapshot | RunFound | Restoration

SUBJECTS: Final[dict[type, str]] = {
    Began: "log.began",
    Left: "log.left",
    Trying: "log.trying",
    Poison: "log.poison",
    Waits: "log.waits",
    Waited: "log.waited",
    NamedSnapshot: "log.snapshot",
    RunFound: "log.run-found",
    Restoration: RESTORED,
}
_TYPES: Final = {subject: kind for kind, subject in SUBJECTS.items()}


ABOUT_THE_LOG: Final = Foreign(reason="it is about the log itself")
"""The form of such an event, which is no message, for parts of a process."""


def is_log_event(subject: str) -> bool:
    """Return whether an event is of the log itself, and has no message."""
    return subject.startswith(PREFIX)


def encode(event: LogEvent, *, by: str, cause: str) -> CommitEvent:
    return CommitEvent(SUBJECTS[type(event)], by, cause, msgspec.Raw(msgspec.json.encode(event)))


def decode(event: CommitEvent) -> LogEvent | None:
    """Return an event of the log; None: it is one of the chain alone (`commit.REKEYED`).

    Raises:
        UnknownFormat: a newer version stored it.
    """
    kind = _TYPES.get(event.subject)
    if kind is None:
        return None
    try:
        decoded: LogEvent = msgspec.json.decode(event.body, type=kind)
    except msgspec.MsgspecError as error:
        raise UnknownFormat(f"{event.subject} is unreadable: {error}. Upgrade this process") from error
    return decoded
