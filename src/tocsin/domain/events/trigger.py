"""What an execution can come of, and what of that somebody can ask for."""

from typing import Final, Literal, TypeAlias

TriggerKind: TypeAlias = Literal["cron", "manual", "api", "event", "replay", "recovery", "backfill"]
COMPENSATING_TRIGGERS: Final = frozenset({"replay", "backfill"})
"""Triggers by which an operator makes up for what was not done."""
TriggerSource: TypeAlias = Literal["manual", "api", "event", "replay", "recovery", "backfill"]
