"""The focus of a schedule: a kind of trouble that would rarely arise by chance.

The seed chooses. A focus adds to the faults that the seed draws; most schedules of most kinds stay mixed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from random import Random
from typing import Final

from tocsin.settings import Queue, QueueRate

from .faults import Faults
from .operators import Decision, decisions, drains
from .workload import (
    ASSIGNED,
    MIXED,
    OUTSIDE,
    QUEUES,
    Action,
    Temper,
    acknowledged,
    actions,
    assigned,
    bridged,
    buried,
    bygone,
    contended,
    delivered,
    depending,
    divided,
    drained,
    enqueued,
    flooded,
    led,
    operated,
    overlapping,
    prioritized,
    registered,
    timed,
)


@dataclass(frozen=True, slots=True)
class Focus:
    """One kind of schedule."""

    name: str
    actions: Callable[[Random, float], list[Action]] = actions
    faults: Mapping[str, float] = field(default_factory=dict)
    """The minimum rate of a fault under this focus."""
    temper: Temper = MIXED
    nodes: tuple[int, ...] = (1, 2, 2, 3)
    workers: tuple[int, ...] = (1, 2, 2)
    outside: int = 0
    """Processes of executors outside."""
    loss: tuple[float, float] = (0.01, 0.0)
    """The share of messages between workers and the matcher that are lost, and of tasks whose agent dies soon after."""
    mq: int = 0
    """Processes of executors that know only hip-62's subjects."""
    fetched: tuple[str, ...] = (OUTSIDE,)
    """The queues of executors outside."""
    queues: Mapping[str, Queue] = field(default_factory=dict)
    """The limits of queues."""
    decisions: Callable[[Random, float], list[Decision]] | None = None
    """The decisions of operators."""
    is_dependent: bool = False
    """Jobs wait for other jobs, and nodes have the dependency keeper."""
    declared: tuple[str, ...] = ()
    """The shards that all workers but the first declare."""
    forgers: int = 0
    """Processes of hostile workers."""

    def troubled(self, drawn: Faults) -> Faults:
        """The faults of a schedule of this kind."""
        return replace(drawn, **self.faults)


_MIXED: Final = Focus("mixed")
_QUICK: Final = Temper(paces=(0.01, 0.03, 1.2))
_CALM: Final = dict.fromkeys((field.name for field in fields(Faults)), 0.0)
"""Any second look at a lock after a loss also hands on a forgotten lock."""
_FOCI: Final = (
    _MIXED,
    Focus(
        "contention: who asks for a lock in the moment in which its holder ends",
        contended,
        _CALM | {"distant": 0.12},
        Temper(paces=(0.2, 0.5)),
        nodes=(2,),
    ),
    Focus(
        "letters: what failed for good is replayed and settled, and the past is made up for",
        buried,
        temper=Temper(failing=0.5),
    ),
    Focus(
        "registrations: a slow copy publishes a definition after another copy published the next",
        registered,
        {"slow": 0.15, "belated": 0.02, "stale": 0.3},
        nodes=(2, 3),
        workers=(1,),
    ),
    Focus(
        "clocks: leaders follow each other whose clocks differ, and who hear late of what the other one did",
        timed,
        {"skew": 9.0, "lagging": 0.4, "deploys": 4.0},
        nodes=(2, 3),
    ),
    Focus(
        "leases: executors outside live on, give back, and are never heard of again",
        enqueued,
        {"clock_steps": 0.0},  # a lease goes by the clock of who gave it
        outside=2,
    ),
    Focus(
        "bridge: tasks are handed over, and answered twice, late, wrongly, or never",
        bridged,
        {"stale": 0.2},
        mq=2,
    ),
    Focus(
        "repetitions: what led to what is over comes again",
        bygone,
        {
            "redeliveries": 0.02,
            "lagging": 0.4,
            "freeze": 0.0,
            "belated": 0.0,
            "skew": 0.0,
            "clock_steps": 0.0,
        },
        nodes=(2, 3),
    ),
    Focus(
        "deliveries: who was taken for dead answers while the next one works",
        delivered,
        {"unacknowledged": 0.7, "freeze": 0.01},
        Temper(paces=(3.0, 5.0), failing=0.5),
        workers=(2, 3),
    ),
    Focus(
        "replicas: who hands a lock on has not seen yet to whom",
        contended,
        _CALM | {"stale": 0.4},
        _QUICK,
        nodes=(2, 3),
    ),
    Focus(
        "wakes: the copy that hands a lock on may die after each write, and each read is from another replica",
        partial(contended, policies=("enqueue", "cancel_previous", "skip")),
        _CALM | {"stale": 0.4, "crash": 0.003, "unanswered": 0.02},
        _QUICK,
        nodes=(2, 3),
    ),
    Focus(
        "overlaps: the earlier execution still runs, and the copy that decides dies or reads a lagging replica",
        overlapping,
        _CALM | {"stale": 0.3, "crash": 0.006, "unacknowledged": 0.05},
        Temper(paces=(0.2, 0.9, 1.5)),
        nodes=(2, 3),
    ),
    Focus(
        "commits: they are in flight among replicas while others are decided",
        flooded,
        _CALM | {"replicating": 0.1},
        Temper(paces=(0.05, 0.2, 0.5)),
        nodes=(1, 2, 3),
    ),
    Focus(
        "agents: tasks are assigned, and their messages and holders are lost",
        assigned,
        {"crash": 0.02},
        Temper(paces=(0.05, 0.5, 20.0)),
        loss=(0.1, 0.25),
    ),
)

OPERATORS: Final = "operators"
OPERATED_FROM: Final = 1_000_000
"""The first seed of schedules with operators: earlier seeds play what they played before there were any."""
_OPERATED: Final = Focus(
    f"{OPERATORS}: queues are paused, purged and limited, and agents disabled, while leaders change",
    operated,
    {"skew": 0.0, "clock_steps": 0.0, "crash": 0.004},
    Temper(paces=(0.05, 0.5, 3.0)),
    nodes=(2, 3),
    workers=(2,),
    outside=1,
    loss=(0.03, 0.03),
    fetched=(OUTSIDE, QUEUES[1]),
    queues={QUEUES[1]: Queue(concurrency=2), ASSIGNED: Queue(rate=QueueRate(limit=1, per=3.0, burst=1))},
    decisions=decisions,
)


DEPENDENT_FROM: Final = 2_000_000
"""The first seed of schedules with jobs that wait for other jobs; earlier seeds have no dependency keeper."""
_DEPENDENT: Final = Focus(
    "dependencies: jobs wait for the last runs of other jobs, and the keeper changes",
    depending,
    {"skew": 0.0, "clock_steps": 0.0, "crash": 0.004, "stale": 0.2, "lagging": 0.2},
    Temper(paces=(0.05, 0.5, 1.5), failing=0.25),
    nodes=(2, 3),
    is_dependent=True,
)

FORGERY: Final = "forgery"
FORGED_FROM: Final = 3_000_000
"""The first seed of schedules with a hostile worker; earlier seeds have none."""
_FORGED: Final = Focus(
    f"{FORGERY}: a worker reports on claims of others by invented and former proofs, late, twice and malformed",
    assigned,
    {"skew": 0.0, "clock_steps": 0.0, "crash": 0.004, "stale": 0.2, "freeze": 0.0},
    Temper(paces=(0.05, 0.5, 3.0)),
    workers=(2,),
    forgers=1,
)


PRIORITIES: Final = "priorities"
PRIORITIZED_FROM: Final = 4_000_000
"""The first seed of schedules whose tasks of several priorities wait together."""
_PRIORITIZED: Final = Focus(
    f"{PRIORITIES}: tasks of several priorities wait for slots together, while leaders change",
    prioritized,
    {"skew": 0.0, "clock_steps": 0.0, "crash": 0.002},
    Temper(paces=(0.05, 0.5, 2.0), failing=0.2),
    nodes=(2, 3),
)

DRAINS: Final = "drains"
DRAINED_FROM: Final = 5_000_000
"""The first seed of schedules whose agents drain under load."""
_DRAINED: Final = Focus(
    f"{DRAINS}: agents drain under load, while leaders change",
    drained,
    {"skew": 0.0, "clock_steps": 0.0, "crash": 0.002},
    Temper(paces=(0.05, 0.5, 4.0)),
    nodes=(2, 3),
    workers=(3,),
    decisions=drains,
)
LED_FROM: Final = 6_000_000
"""The first seed of schedules with jobs for the executor leader."""
_LED: Final = Focus(
    "leaders: only one worker gets the tasks of some jobs, and dies, while two matchers believe that they lead",
    led,
    {"crash": 0.008, "freeze": 0.004, "stale": 0.2, "lagging": 0.2, "clock_steps": 0.0, "skew": 0.0},
    Temper(paces=(0.05, 0.5, 3.0)),
    nodes=(2, 3),
    workers=(2, 3),
    loss=(0.03, 0.3),
)
DIVIDED_FROM: Final = 7_000_000
"""The first seed of schedules with shards."""
_DIVIDED: Final = Focus(
    "shards: jobs run on shards that some workers declare, and die, while two matchers believe that they lead",
    divided,
    {"crash": 0.008, "freeze": 0.004, "stale": 0.2, "lagging": 0.2, "clock_steps": 0.0, "skew": 0.0},
    Temper(paces=(0.05, 0.5, 3.0)),
    nodes=(2, 3),
    workers=(3,),
    loss=(0.03, 0.3),
    declared=("s1", "s2"),
)
QUORUMS: Final = "quorums"
ACKNOWLEDGED_FROM: Final = 8_000_000
"""The first seed of schedules with jobs that need acknowledgements."""
_ACKNOWLEDGED: Final = Focus(
    f"{QUORUMS}: agents acknowledge executions, and die, while two agent keepers believe that they lead",
    acknowledged,
    {"crash": 0.008, "freeze": 0.004, "stale": 0.2, "lagging": 0.2, "clock_steps": 0.0, "skew": 0.0},
    Temper(paces=(0.05, 0.5, 1.5)),
    nodes=(2, 3),
    workers=(3,),
    loss=(0.4, 0.0),
)
_LATER: Final = {
    OPERATED_FROM: _OPERATED,
    DEPENDENT_FROM: _DEPENDENT,
    FORGED_FROM: _FORGED,
    PRIORITIZED_FROM: _PRIORITIZED,
    DRAINED_FROM: _DRAINED,
    LED_FROM: _LED,
    DIVIDED_FROM: _DIVIDED,
    ACKNOWLEDGED_FROM: _ACKNOWLEDGED,
}
"""The kinds of schedules with seeds of their own, by the first seed."""


def seeds_from(first: int, number: int) -> list[int]:
    """Return seeds of all schedules: as many of each kind with seeds of its own as of each other kind."""
    end = first + number
    of_one = range(first // len(_FOCI), end // len(_FOCI))
    return [*range(first, end), *(begin + each for begin in _LATER for each in of_one)]


def first_of(focus: str) -> int:
    """Return the first seed of the kind of schedule that begins with some words."""
    return next((begin for begin, each in _LATER.items() if each.name.startswith(focus)), 0)


def focus_of(seed: int) -> Focus:
    """Return the focus of a seed."""
    later = max((begin for begin in _LATER if begin <= seed), default=None)
    return _FOCI[seed % len(_FOCI)] if later is None else _LATER[later]
