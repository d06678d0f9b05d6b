"""Times without a leading ticker, from the events on leadership."""

from collections.abc import Iterable
from datetime import datetime

from ...domain.events import (
    LeadershipFact,
    LeadershipGained,
    LeadershipLost,
    LeadershipReleased,
    Message,
    Recorded,
)
from .answer import Gap


def gap_around(at: datetime, decided: datetime | None, leadership: Iterable[Recorded[Message]]) -> Gap | None:
    """Return the gap that contains an instant decided at `decided` (None: not yet).

    None means that a ticker led, or that no event shows a gap.
    """
    sign: datetime | None = None
    holder: str | None = None
    for recorded in leadership:
        fact = recorded.message
        if not isinstance(fact, LeadershipFact) or (decided is not None and recorded.time > decided):
            continue
        match fact:
            case LeadershipGained():
                seen = max((one for one in (sign, fact.last_sign) if one is not None), default=None)
                if (seen is None or seen < at) and at <= fact.at:
                    return Gap(seen, fact.at, holder, fact.holder)
                sign, holder = max(fact.at, seen or fact.at), fact.holder
            case LeadershipReleased():
                sign = fact.at
            case LeadershipLost() if fact.holder == holder:
                sign = fact.last_sign
            case _:
                pass
    return Gap(sign, None, holder) if decided is None and sign is not None and _is_over(leadership) else None


def _is_over(leadership: Iterable[Recorded[Message]]) -> bool:
    """Return whether the last leader recorded the end of its leadership."""
    facts = [recorded.message for recorded in leadership]
    return bool(facts) and not isinstance(facts[-1], LeadershipGained)
