"""Locks (I5): one holder at a time, under tokens that only grow."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from tocsin.domain.events import Acquired, Admitted, Recorded

from .everything import Everything, Violation


def a_lock_has_one_holder(everything: Everything) -> Iterator[Violation]:
    """Nobody acquires a lock whose holder is not over."""
    locks: dict[str, list[Recorded[Acquired]]] = defaultdict(list)
    for acquired in everything.facts(Acquired):
        locks[acquired.subject].append(acquired)
    for acquisitions in locks.values():
        for one, following in pairwise(acquisitions):
            end = everything.ends.get(one.message.execution_id)
            if end is None or end.sequence > following.sequence:
                yield Violation.of("I5", "acquired while its holder was not over", one, following)


def who_runs_under_a_lock_holds_it(everything: Everything) -> Iterator[Violation]:
    """An execution is admitted under the token of its own lock, and without one only where none is asked.

    A copy that slept may acquire once more for what is over by then; that holds nothing.
    """
    tokens = {(acquired.message.execution_id, acquired.sequence) for acquired in everything.facts(Acquired)}
    for recorded in everything.facts(Admitted):
        admitted = recorded.message
        if (admitted.fence is None) != (admitted.plan.overlap_policy == "allow"):
            yield Violation.of("I5", f"fence {admitted.fence} under {admitted.plan.overlap_policy!r}", recorded)
        elif admitted.fence is not None and (admitted.execution_id, admitted.fence) not in tokens:
            yield Violation.of("I5", f"fence {admitted.fence} is not that of its lock", recorded)
