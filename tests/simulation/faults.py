"""The faults and their rates, drawn for each schedule separately.

If every fault were equally likely in every schedule, faults would hide each other's consequences.
"""

from dataclasses import dataclass, fields
from random import Random
from typing import Final


@dataclass(frozen=True, slots=True)
class Faults:
    """Shares of requests, answers or deliveries; and mean seconds between spontaneous faults (0: never)."""

    slow: float = 0.0
    """Takes long on its way."""
    lost: float = 0.0
    """The request never arrives; the caller gets no answer."""
    unanswered: float = 0.0
    """The request is carried out; the caller gets no answer."""
    repeated: float = 0.0
    """Is done, the answer is lost, and it is sent again."""
    belated: float = 0.0
    """The request is carried out after the caller has timed out."""
    stale: float = 0.0
    """Is answered by a replica that lags."""
    unacknowledged: float = 0.0
    """The word on a delivery is lost."""
    crash: float = 0.0
    """Kills the process that sent the request."""
    freeze: float = 0.0
    """Pauses the process that sent the request, for seconds."""
    deploys: float = 0.0
    """A process is stopped in good order, and started again."""
    server_restarts: float = 0.0
    """Delivered messages are delivered again, and their counts start again."""
    redeliveries: float = 0.0
    """Something that was dealt with long ago is handed out once more."""
    clock_steps: float = 0.0
    """A wall clock is set."""
    skew: float = 0.0
    """Seconds by which wall clocks differ, at most."""
    lagging: float = 0.0
    """A follower receives messages seconds late."""
    distant: float = 0.0
    """Seconds on each way to one machine that is far away."""
    replicating: float = 0.0
    """Seconds for which a commit is in flight among replicas, at most."""
    lagging_leader: float = 0.0
    """A commit is refused by a leader of the stream that lags, and names a lower sequence."""
    cut: float = 0.0
    """A commit ends after a decision."""
    foreign: float = 0.0
    """A copy of a commit, a forged one, or anything else is stored in the log of commits."""


NONE: Final = Faults()

_WORST: Final = Faults(
    slow=0.15,
    lost=0.03,
    unanswered=0.05,
    repeated=0.08,
    belated=0.04,
    stale=0.4,
    unacknowledged=0.15,
    crash=0.012,
    freeze=0.008,
    deploys=8.0,
    server_restarts=10.0,
    redeliveries=0.4,
    clock_steps=6.0,
    skew=4.0,
    lagging=0.3,
    distant=0.3,
    replicating=0.1,
    lagging_leader=0.1,
    cut=0.5,
    foreign=0.3,
)
_CHOSEN: Final = 0.45


def draw(chance: Random) -> Faults:
    """Draw the faults of one schedule: a rate for each, from rare to extreme."""
    drawn = {}
    for field in fields(Faults):
        worst = getattr(_WORST, field.name)
        share = chance.uniform(0.1, 1.0)
        if chance.random() < _CHOSEN:
            drawn[field.name] = worst / share if field.name in _MEAN_SECONDS else worst * share
    return Faults(**drawn)


_MEAN_SECONDS: Final = frozenset({"deploys", "server_restarts", "redeliveries", "clock_steps", "foreign"})
