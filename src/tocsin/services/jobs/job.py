"""A job as its ledger tells it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from ...domain import ledger
from ...domain.definition import JobDefinition
from ...domain.job_record import Registration
from ...domain.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Job:
    """A registered job: the definition in force, and the ledger that says the rest."""

    definition: JobDefinition
    defined_at: datetime
    sequence: int
    """The last fact on its definition."""
    ledger: Ledger

    @classmethod
    def of(cls, state: Ledger) -> "Job | None":
        """What a ledger says; None: there is no such job."""
        registration = Registration.of(state)
        if registration is None:
            return None
        return cls(registration.definition, registration.defined_at, registration.sequence, state)

    @property
    def name(self) -> str:
        """The job's name."""
        return self.definition.name

    @property
    def created_at(self) -> datetime:
        """When it was registered first (UTC)."""
        return self.ledger.created_at or self.defined_at

    @property
    def created_by(self) -> str | None:
        """The identity of who did, if that was said."""
        return self.ledger.created_by

    @property
    def status(self) -> Literal["active", "paused", "disabled", "on demand"]:
        """Whether its schedule fires, and if not why."""
        if self.ledger.is_paused:
            return "paused"
        if not self.definition.enabled:
            return "disabled"
        return "active" if self.definition.schedule else "on demand"

    def fire_times(self, after: datetime) -> Iterator[datetime]:
        """The instants later than `after` (UTC) at which it fires if nothing changes, without end where it has none."""
        at = ledger.next_fire_time(self.ledger, after)
        while at is not None:
            yield at
            at = ledger.next_fire_time(self.ledger, at)

    def next_fire_time(self, after: datetime) -> datetime | None:
        """The first of them (CRON-28)."""
        return next(self.fire_times(after), None)

    def summary(self, now: datetime) -> dict[str, Any]:
        """What programs are told of it in a list, as it is at `now` (UTC)."""
        definition = self.definition
        return {
            "name": self.name,
            "state": self.status,
            "schedule": definition.schedule,
            "timezone": definition.timezone,
            "next_fire_time": self.next_fire_time(now),
            "last_fire_time": self.ledger.last_fired,
            "function": definition.function,
            "steps": [step.name for step in definition.dag],
            "tags": list(definition.tags),
            "owner": definition.owner,
        }


Check: TypeAlias = Callable[["Job | None"], None]
"""Raises what it likes if a change must not be made to this job (None: there is none); asked on the very state decided on."""


def anything(_: Job | None) -> None:
    """No condition."""
