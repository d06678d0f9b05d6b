"""The simulation catches bugs: some mutations of the table fail schedules that are otherwise clean.

`python -m tests.simulation --mutations --seeds 5000` tries all of them.
"""

import pytest

from .focus import AGENT_SEEDS, focus_of
from .mutations import MUTATIONS, Mutation, judged, made
from .simulation import play

SCHEDULES = range(120)  # an early seed catches each; which seed depends on every change of the stages
CAUGHT = (
    "append behind whatever is last",
    "acknowledge before the facts are stored",
    "believe a replica that there is nothing to do",
    "fire the past of an edit",
    "fire by the clock of the machine",
    "fire what was named while the job was paused",
    "make an id of the moment",
    "make one id of two triggers",
    "announce without a look",
    "announce nothing where it was planned before",
    "expire a lock without proof",
    "release the lock when a step ends",
    "let in the newest instead of the earliest",
    "guess the fencing token",
    "dispatch again what was dispatched",
    "dispatch a step with one dependency missing",
    "be done when the first step is",
    "cancel no step behind a failure",
    "try once more than allowed",
    "draw jitter twice as wide",
    "move the recorder's place without the rows",
)


FOCUSED = {
    "queue, and look no more whether the holder is over": "contention",
    "hand the lock on for no end by cancellation": "contention",
    "believe a replica that the holder of a lock is not over": "contention",
    "count the failure of an old delivery": "deliveries",
    "believe a replica that who has the lock was never planned": "replicas",
    "believe a replica that no execution waits for a lock": "replicas",
    "announce nothing again": "wakes",
    "show a definition whatever is shown": "registrations",
    "hand over one attempt": "bridge",
    "report one attempt": "bridge",
    "believe an answer without a token": "bridge",
    "decide a replay by what holds when it is handled": "letters",
    "accept a claim without a time limit": "leases",
    "store two decisions of one scope in one batch": "commits",
    "guard a claim by another string": "commits",
    "handle what was decided long ago": "archive",
    "archive what is open": "archive",
    "archive what is not recorded": "archive",
}
"""Bugs that ask for a coincidence, and the focus in which that is common."""
MANY = 6_000
ASSIGNING = ("hand a task over once", "keep the claims of agents that are lost")


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_every_bug_of_the_table_can_be_made(mutation: Mutation) -> None:
    with made(mutation):
        pass


@pytest.mark.parametrize("name", CAUGHT)
def test_a_bug_is_caught(name: str) -> None:
    verdict = judged(name, SCHEDULES)
    assert verdict.violation is not None


@pytest.mark.parametrize(("name", "focus"), FOCUSED.items())
def test_bug_behind_a_coincidence_is_caught(name: str, focus: str) -> None:
    seeds = [seed for seed in range(MANY) if focus_of(seed).name.startswith(focus)]
    assert judged(name, seeds).violation is not None


@pytest.mark.parametrize("name", ASSIGNING)
def test_bug_of_the_matcher_is_caught(name: str) -> None:
    assert judged(name, range(AGENT_SEEDS, AGENT_SEEDS + 200)).violation is not None


def test_a_bug_is_gone_behind_its_block() -> None:
    verdict = judged(CAUGHT[0], SCHEDULES)
    assert verdict.seed is not None
    assert play(verdict.seed).violations == ()
