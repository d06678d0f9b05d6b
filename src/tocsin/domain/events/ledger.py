"""The ledger of a job: its definitions and its time."""

from datetime import datetime
from typing import Literal, TypeAlias

from ..definition import JobDefinition
from .actor import Actor
from .message import Message, Sequence


class LedgerFact(Message):
    """A fact about one job as a whole. `previous` chains the definition facts, so that a reader sees a gap."""

    v: Literal[1] = 1
    job: str


class DefinitionFact(LedgerFact):
    """What holds for the job from the moment that this is stored.

    Each tells the whole (which definition, paused or not) and names its `previous` one by sequence (0: none), so that
    whoever holds only the newest can go back fact by fact.
    """

    previous: Sequence = 0
    by: Actor | None = None
    reason: str | None = None


class Defined(DefinitionFact):
    """The job has this definition from now on; whether it is paused stays as it was."""

    type: Literal["defined"] = "defined"
    definition: JobDefinition
    paused: bool = False
    created_at: datetime | None = None
    """When the job was registered first (UTC); None: by this very fact."""
    created_by: str | None = None
    """The identity of who did; None: whoever this fact names, if it is the first, else nobody said."""


class Paused(DefinitionFact):
    """Instants pass without firing from now on. `definition` is the sequence of the definition in force."""

    type: Literal["paused"] = "paused"
    definition: Sequence


class Resumed(DefinitionFact):
    """Instants fire again from now on; what passed while paused stays passed."""

    type: Literal["resumed"] = "resumed"
    definition: Sequence


class Deleted(DefinitionFact):
    """The job is gone; its log remains."""

    type: Literal["deleted"] = "deleted"


class Due(LedgerFact):
    """One instant that the schedule names has come and is to be decided on.

    `dst_skip`: a local time that the clocks left out falls on the same instant; that one is skipped.
    """

    type: Literal["due"] = "due"
    scheduled_time: datetime
    definition: Sequence
    catch_up: bool = False
    dst_skip: bool = False


PassedReason: TypeAlias = Literal["paused", "dst_skip", "missed", "superseded", "throttled"]


class Passed(LedgerFact):
    """A span of time, (start, until], is over without firing: `count` instants in it did not fire, and why.

    `scheduled_times` names them where the public is told of each (`paused`, `dst_skip`). For another reason it names the local
    times that the clocks left out and that fall on instants of the span; those are not counted.
    """

    type: Literal["passed"] = "passed"
    start: datetime
    until: datetime
    reason: PassedReason
    count: int
    definition: Sequence
    scheduled_times: tuple[datetime, ...] = ()
