"""The proposals that a worker acknowledges: bounded, and named for a short time."""

from tocsin.domain.agent import MAX_PROPOSALS
from tocsin.testing import ManualClock
from tocsin.worker.agent import NAMED_FOR_S, Acknowledgements


def test_proposal_is_named_for_a_short_time() -> None:
    clock = ManualClock()
    acknowledgements = Acknowledgements(clock)
    acknowledgements.take((7,))
    clock.advance(NAMED_FOR_S / 2)
    acknowledgements.take((9, 9))
    assert acknowledgements.named() == (7, 9)
    clock.advance(NAMED_FOR_S / 2)
    assert acknowledgements.named() == (9,)


def test_repeated_proposal_extends_the_time() -> None:
    clock = ManualClock()
    acknowledgements = Acknowledgements(clock)
    acknowledgements.take((7,))
    clock.advance(NAMED_FOR_S - 1)
    acknowledgements.take((7,))
    clock.advance(NAMED_FOR_S - 1)
    assert acknowledgements.named() == (7,)


def test_newest_proposals_are_kept() -> None:
    acknowledgements = Acknowledgements(ManualClock())
    acknowledgements.take(range(1, MAX_PROPOSALS + 1))
    acknowledgements.take((MAX_PROPOSALS + 5,))
    named = acknowledgements.named()
    assert (len(named), named[0], named[-1]) == (MAX_PROPOSALS, 2, MAX_PROPOSALS + 5)
