"""The outcome: judged by the audit of the whole log and by the history, and counted."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rich.table import Table

from tests.stored_events import StoredEvents
from tests.system.chaos.attack import Attack
from tests.system.chaos.installations import SiteOfUsers
from tests.system.chaos.load import FAILING
from tests.system.chaos.plan import How, Kind
from tests.system.gaps import TICK
from tests.system.processes import Site
from tests.system.worker_process import noted
from tocsin.domain.events import Completed, Due, Failed, Passed, Started, Trigger


@dataclass
class Outcome:
    """The figures, and everything that is wrong."""

    figures: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Nothing is wrong."""
        return not self.wrong

    def table(self) -> Table:
        """For a terminal."""
        table = Table("figure", "value", title="chaos: " + ("clean" if self.is_clean else "NOT CLEAN"))
        for name, value in self.figures.items():
            shown = (
                ", ".join(f"{number} {what}" for what, number in value.items()) if isinstance(value, dict) else value
            )
            table.add_row(name, str(shown))
        return table

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        return {"clean": self.is_clean, **self.figures, "wrong": self.wrong}


async def judged(
    tocsin: SiteOfUsers, *, triggers: int, struck: Mapping[tuple[How, Kind], int], attack: Attack | None = None
) -> Outcome:
    """Wait until the system is idle, then judge everything by the public audit."""
    outcome = Outcome()
    try:
        await tocsin.quiet()
    except AssertionError as error:
        outcome.wrong.append(str(error))
    everything = await StoredEvents.decodable(tocsin.installation.stored)
    outcome.wrong += _wrong(everything, tocsin, triggers)
    outcome.wrong += await attack.wrong(everything) if attack else []
    try:
        if not outcome.wrong:
            await tocsin.history_agrees_with(everything)
    except (AssertionError, TimeoutError) as error:
        outcome.wrong.append(f"the history does not show what the log says: {error}")
    tocsin.log_in("viewer")
    code, audit = await tocsin.call("audit", "--history", "--patience", "1s")
    outcome.wrong += [json.dumps(violation) for violation in audit.get("violations", ())]
    if code != 0 and not outcome.wrong:
        outcome.wrong.append(f"the audit ended with {code}: {audit}")
    outcome.figures = (
        _figures(everything, struck)
        | (attack.figures() if attack else {})
        | {"audited, with the history": f"{audit.get('facts')} facts, {audit.get('violations_total')} violations"}
    )
    return outcome


def _wrong(everything: StoredEvents, tocsin: Site, triggers: int) -> list[str]:
    """Check what the audit cannot know: the requests sent, and the calls that handlers saw."""
    wrong = []
    if (stored := _triggers(everything)) != triggers:
        wrong.append(f"{triggers} triggers were acknowledged, {stored} are stored")
    if unclaimed := noted(tocsin.runs) - everything.runs():
        wrong.append(f"ran without a claim: {unclaimed}")
    if failed := {fact.message.job for fact in everything.facts(Failed)} - FAILING:
        wrong.append(f"failed, and should not have: {failed}")
    if completed := {fact.message.job for fact in everything.facts(Completed)} & FAILING:
        wrong.append(f"completed, and should not have: {completed}")
    return wrong


def _triggers(everything: StoredEvents) -> int:
    """Return the number of triggers that programs outside did not send."""
    return sum(isinstance(recorded.message, Trigger) for recorded in everything.requests)


def _figures(everything: StoredEvents, struck: Mapping[tuple[How, Kind], int]) -> dict[str, Any]:
    dues = everything.facts(Due)
    passed = Counter[str]()
    for recorded in everything.facts(Passed):
        passed[recorded.message.reason] += recorded.message.count
    ticks = [due.time for due in dues if due.message.job == TICK["name"]]
    claims = everything.facts(Started)
    return {
        "killed": {kind: number for (how, kind), number in sorted(struck.items()) if how == "kill"},
        "paused": {kind: number for (how, kind), number in sorted(struck.items()) if how == "pause"},
        "executions": dict(Counter(end.message.type for end in everything.ends.values())),
        "occurrences": {"due": len(dues), **passed},
        "fired late": sum(due.message.catch_up for due in dues),
        "triggers": _triggers(everything),
        "attempts": len(everything.runs()),
        "claimed again after a death": len(claims) - len(everything.runs()),
        "longest time without a firing, s": round(
            max((later - time).total_seconds() for time, later in pairwise(ticks)), 1
        ),
        "stuck": len(everything.executions.keys() - everything.ends.keys()),
    }
