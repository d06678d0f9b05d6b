"""The state of a ledger."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from ..definition import CatchUp, JobDefinition
from ..schedule import DstPolicy


@dataclass(frozen=True, slots=True)
class Regime:
    """What holds from `since` on: the definition by its sequence in the ledger (0: deleted), paused or not."""

    since: datetime
    definition: int
    paused: bool
    fact: int
    previous: int


@dataclass(frozen=True, slots=True)
class Timetable:
    """The part of a definition that decides on time."""

    schedule: str | None
    timezone: str
    dst: DstPolicy | None
    enabled: bool
    catch_up: CatchUp
    catch_up_limit: int
    catch_up_max_age: float
    starting_deadline: float | None

    @classmethod
    def of(cls, definition: JobDefinition) -> "Timetable":
        """That of a definition."""
        return cls(*(getattr(definition, name) for name in cls.__slots__))

    def has_same_instants_as(self, other: "Timetable") -> bool:
        """Whether both name the same instants."""
        return (self.schedule, self.timezone, self.dst) == (other.schedule, other.timezone, other.dst)


@dataclass(frozen=True, slots=True)
class KnownDefinition:
    """A definition that a regime may name: `since` when, what it says of time, and the rest unless that was dropped."""

    since: datetime
    timetable: Timetable
    definition: JobDefinition | None
    created_at: datetime | None = None
    """When the job was registered first; None: at `since`."""
    created_by: str | None = None
    """By whom; None: nobody said."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """A job's ledger. `regimes` are those that govern undecided time; the last of them is in force now."""

    job: str = ""
    regimes: tuple[Regime, ...] = ()
    definitions: Mapping[int, KnownDefinition] = field(default_factory=dict)
    watermark: datetime | None = None
    last_fired: datetime | None = None

    @property
    def current(self) -> Regime | None:
        """The regime in force now."""
        return self.regimes[-1] if self.regimes else None

    @property
    def definition(self) -> JobDefinition | None:
        """The definition in force now; None: no such job."""
        known = self._known
        return known.definition if known else None

    @property
    def timetable(self) -> Timetable | None:
        """What the definition in force now says of time."""
        known = self._known
        return known.timetable if known else None

    @property
    def created_at(self) -> datetime | None:
        """When the job was registered first (UTC)."""
        known = self._known
        return (known.created_at or known.since) if known else None

    @property
    def created_by(self) -> str | None:
        """The identity of who registered it first, if that was said."""
        known = self._known
        return known.created_by if known else None

    @property
    def _known(self) -> KnownDefinition | None:
        return self.definitions.get(self.current.definition) if self.current else None

    @property
    def is_paused(self) -> bool:
        """Somebody paused the job."""
        return self.current is not None and self.current.paused


initial: Final = Ledger()
