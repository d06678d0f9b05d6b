"""Who led."""

from datetime import datetime
from typing import Literal

from .message import Message


class LeadershipFact(Message):
    """A fact about a lease: who may act, `at` an instant by the holder's clock. Nobody decides on it; it explains a gap."""

    v: Literal[1] = 1
    lease: str
    holder: str
    at: datetime


class LeadershipGained(LeadershipFact):
    """The holder leads from now on. `last_sign`: when it was last seen, by this one, that somebody led before."""

    type: Literal["gained"] = "gained"
    last_sign: datetime | None = None


class LeadershipReleased(LeadershipFact):
    """The holder gave the lease back."""

    type: Literal["released"] = "released"


class LeadershipLost(LeadershipFact):
    """The holder found that it does not lead any more; `last_sign` is when it last knew that it did."""

    type: Literal["lost"] = "lost"
    last_sign: datetime
