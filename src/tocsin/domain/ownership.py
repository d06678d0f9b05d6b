"""Resources with one owner among the agents, and the choice of the owner.

Tasks that need a resource are kept apart from others of their function: the owner offers their lanes, and no other agent does.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

EXECUTOR: Final = "executor"
"""The resource of `LEADER_ONLY` jobs: the executor lease, whose owner is the executor leader."""
_SEPARATOR: Final = " "
"""Between the function and the resource of a lane. No function has a blank."""


class Owner(NamedTuple):
    """A process that owns a resource."""

    name: str
    agent_id: str
    epoch: int
    """The sequence of the event that made it the owner."""


class Candidate(NamedTuple):
    """A process that may become the owner of a resource."""

    owned: int
    """The number of resources that it owns."""
    name: str
    agent_id: str


def choose(candidates: Iterable[Candidate]) -> Candidate | None:
    """Return the candidate that owns least, by name among equals; None: no agent stands."""
    return min(candidates, default=None)


def lane_of(function: str, resource: str | None) -> str:
    """Return the name of the lane of a task."""
    return function if resource is None else f"{function}{_SEPARATOR}{resource}"


def function_of(lane: str) -> str:
    """Return the function of a lane."""
    return lane.partition(_SEPARATOR)[0]


def is_owned(lane: str) -> bool:
    """Return whether only the owner of a resource gets the tasks of a lane."""
    return _SEPARATOR in lane
