"""Events of a job's ledger: its definitions and the outcomes of its instants."""

from datetime import datetime
from typing import Literal, TypeAlias

from ..definition import JobDefinition
from .message import Actor, CheckedMessage, Recorded, Sequence


class LedgerFact(CheckedMessage):
    """An event about one job as a whole."""

    v: Literal[1] = 1
    job: str


class DefinitionFact(LedgerFact):
    """An event that changes the definition or the pause of a job.

    It is in force from the time of its request, if no later instant is decided. Each event states the whole (definition and pause) and
    links to its predecessor, so that a reader who starts with the newest can go back event by event.
    """

    previous: Sequence = 0
    """The sequence of the preceding definition event of this job; 0: none."""
    by: Actor | None = None
    """The identity that made the change."""
    reason: str | None = None
    """The reason that the caller gave."""
    since: datetime | None = None
    """The time (UTC) from which the change is in force; absent: the time at which the log stores the event."""


def in_force_since(recorded: Recorded[DefinitionFact]) -> datetime:
    """Return the time (UTC) from which a change of a definition is in force."""
    return recorded.message.since or recorded.time


class Defined(DefinitionFact):
    """A job was registered or updated.

    The job registry stores this when a client submits a new definition.
    """

    type: Literal["defined"] = "defined"
    definition: JobDefinition
    """The complete definition that is in force from now on."""
    paused: bool = False
    """True: the job is paused. An update does not change this."""
    created_at: datetime | None = None
    """The time (UTC) of the first registration; absent: this event is the first registration."""
    created_by: str | None = None
    """The identity that registered the job first, with its kind (`token:deploy`).

    Absent: the identity in `by` if this is the first registration, otherwise unknown.
    """
    anchor: datetime | None = None
    """The time (UTC) from which `@every` counts until the job fires; absent: the time from which this event is in force.

    An update that keeps the interval keeps the anchor, so that frequent updates do not postpone the next instant.
    """

    @property
    def creator(self) -> str | None:
        """Return the identity that registered the job first, with its kind; None: unknown."""
        return self.by.full_name if self.created_at is None and self.by else self.created_by


class Paused(DefinitionFact):
    """A job was paused.

    The job registry stores this on request. Instants then pass without firing.
    """

    type: Literal["paused"] = "paused"
    definition: Sequence
    """The sequence of the definition in force."""


class Resumed(DefinitionFact):
    """A job was resumed.

    The job registry stores this on request. Later instants fire again; instants that passed during the pause do not.
    """

    type: Literal["resumed"] = "resumed"
    definition: Sequence
    """The sequence of the definition in force."""


class Deleted(DefinitionFact):
    """A job was deleted.

    The job registry stores this on request. The job's log remains.
    """

    type: Literal["deleted"] = "deleted"


class Due(LedgerFact):
    """An instant of the schedule has come and fires.

    The ticker stores this, and the planner then plans the execution.
    """

    type: Literal["due"] = "due"
    scheduled_time: datetime
    """The instant (UTC) that the schedule names."""
    definition: Sequence
    """The sequence of the definition that was in force at that instant."""
    catch_up: bool = False
    """True: the instant fires late, under the job's catch-up policy."""
    dst_skip: bool = False
    """True: a skipped local time falls on the same instant; that local time does not fire."""
    shards: Sequence = 0
    """For a job with a partition: the version of the shard map, the sequence of its event; 0: no map."""


PassedReason: TypeAlias = Literal["paused", "dst_skip", "missed", "superseded", "excluded", "poison"]


class Passed(LedgerFact):
    """Instants in a span of time did not fire.

    The ticker stores this once it has decided on the span.
    """

    type: Literal["passed"] = "passed"
    start: datetime
    """The beginning of the span (UTC), exclusive."""
    until: datetime
    """The end of the span (UTC), inclusive."""
    reason: PassedReason
    """The reason why the instants did not fire.

    `paused`: the job was paused or disabled. `dst_skip`: the clocks skipped the local time. `missed`: too old for the
    catch-up policy. `superseded`: a newer definition does not fire them.
    `excluded`: a calendar or a blackout of the job excludes them; those of one local day are stored together. `poison`: the decision
    on them kills the processes that make it, which is a defect.
    """
    count: int
    """The number of instants that did not fire."""
    definition: Sequence
    """The sequence of the definition that was in force in the span."""
    scheduled_times: tuple[datetime, ...] = ()
    """For `paused` and `dst_skip`: each instant (UTC), because each is announced.

    For any other reason: the skipped local times that fall on instants of the span; `count` does not include them.
    """
