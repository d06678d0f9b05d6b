"""The past of a job, made by the real domain: definitions, a ticker that is there or away, and who led."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import cast

from tocsin import subjects
from tocsin.domain import ledger, replay
from tocsin.domain.definition import JobDefinition
from tocsin.domain.events import (
    Actor,
    DefinitionFact,
    Due,
    Message,
    Passed,
    Recorded,
)
from tocsin.domain.ledger import Ledger
from tocsin.domain.log_events import LeaderChange
from tocsin.services.explain import Answer, judge

ADA = Actor(identity="ada")


def utc(text: str) -> datetime:
    """An instant; without an offset in UTC."""
    at = datetime.fromisoformat(text)
    return at if at.tzinfo else at.replace(tzinfo=UTC)


class Past:
    """The stored events and their times."""

    def __init__(self, schedule: str | None = "0 * * * *", timezone: str = "UTC", **more: object) -> None:
        self.definition = {"name": "job", "schedule": schedule, "timezone": timezone, "function": "f", **more}
        self.facts: list[Recorded[Message]] = []
        self.leaders: list[LeaderChange] = []
        self.now = datetime.min.replace(tzinfo=UTC)
        self.asked: datetime | None = None

    @property
    def state(self) -> Ledger:
        return ledger.fold(self.facts)

    def store(self, facts: Iterable[Message], at: datetime) -> None:
        self.now = max(self.now, at)
        for fact in facts:
            if self.asked is not None and isinstance(fact, DefinitionFact) and self.state.may_change_at(self.asked):
                fact = fact.changed(since=self.asked)  # noqa: PLW2901 - as the registrar does
            self.facts.append(Recorded(fact, subjects.subject_of(fact), len(self.facts) + 1, at))

    def requested(self, at: str | None) -> "Past":
        """Let the changes that follow be requested at a time; None: when they are stored."""
        self.asked = utc(at) if at else None
        return self

    def defined(self, at: str, **changed: object) -> "Past":
        self.definition |= changed
        definition = JobDefinition.model_validate(self.definition)
        self.store(ledger.define(self.state, definition, by=ADA), utc(at))
        return self

    def paused(self, at: str) -> "Past":
        self.store(ledger.pause(self.state, "job", by=ADA, reason="too loud"), utc(at))
        return self

    def resumed(self, at: str) -> "Past":
        self.store(ledger.resume(self.state, "job", by=ADA), utc(at))
        return self

    def deleted(self, at: str) -> "Past":
        self.store(ledger.delete(self.state, "job", by=ADA, reason="not needed"), utc(at))
        return self

    def ticked(self, at: str | datetime) -> "Past":
        now = at if isinstance(at, datetime) else utc(at)
        self.now = max(self.now, now)
        while facts := ledger.decide_instants(self.state, now):
            self.store(facts, now)
        return self

    def gained(self, at: str, holder: str = "one", last_sign: str | None = None) -> "Past":
        sign = utc(last_sign) if last_sign else None
        return self.led(LeaderChange(len(self.leaders) + 1, utc(at), holder, begins=True, last_sign=sign))

    def released(self, at: str, holder: str = "one") -> "Past":
        return self.led(LeaderChange(len(self.leaders) + 1, utc(at), holder, begins=False))

    def led(self, change: LeaderChange) -> "Past":
        self.leaders.append(change)
        self.now = max(self.now, change.at)
        return self

    def until(self, at: str) -> "Past":
        self.now = utc(at)
        return self

    @property
    def evidence(self) -> replay.Past:
        definitions = [cast("Recorded[DefinitionFact]", r) for r in self.facts if isinstance(r.message, DefinitionFact)]
        decisions = [cast("Recorded[Due | Passed]", r) for r in self.facts if isinstance(r.message, Due | Passed)]
        return replay.Past("job", definitions, decisions, self.leaders, self.now)

    def why(self, at: str) -> tuple[Answer, ...]:
        return judge(self.evidence, datetime.fromisoformat(at))
