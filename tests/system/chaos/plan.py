"""The plan: targets, times and kinds of strikes, drawn from a seed."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["stage", "worker", "node"]
How: TypeAlias = Literal["kill", "pause"]
Card: TypeAlias = tuple[How, tuple[Kind, ...]]

CARDS: Final[tuple[Card, ...]] = (
    ("kill", ("stage",)),
    ("kill", ("worker",)),
    ("kill", ("node",)),
    ("pause", ("stage",)),
    ("pause", ("worker",)),
    ("pause", ("node",)),
    ("kill", ("stage", "stage")),
    ("kill", ("stage", "worker")),
    ("kill", ("stage", "node")),
    ("kill", ("worker", "node")),
    ("pause", ("stage", "worker")),
    ("kill", ("node", "node")),
)
"""Every way to strike. With two of three nodes the cluster has no majority: until one is back, nothing can be stored."""

REST: Final = (2.0, 6.0)
AWAY: Final = (0.0, 3.0)
PAUSED: Final = (1.0, 6.0)
"""Ranges of seconds: between two strikes; until the dead are restarted; for pauses."""


@dataclass(frozen=True, slots=True)
class Strike:
    """A strike: one or two processes, killed by SIGKILL or stopped by SIGSTOP for `seconds`, then `rest` seconds."""

    how: How
    victims: tuple[str, ...]
    seconds: float
    rest: float

    def __str__(self) -> str:
        return f"{self.how} {' and '.join(self.victims)} for {self.seconds:.1f} s, then {self.rest:.1f} s of rest"


def plan(seed: int, seconds: float, names: Mapping[Kind, Sequence[str]]) -> list[Strike]:
    """Return strikes for about a number of seconds.

    Every card is used once before any is repeated, except those that need more targets than there are.
    """
    chance = random.Random(seed)  # noqa: S311 - the same plan for the same seed is what it is for
    strikes: list[Strike] = []
    left = seconds
    cards = [card for card in CARDS if all(card[1].count(kind) <= len(names[kind]) for kind in card[1])]
    for how, kinds in _deck(chance, cards):
        strikes.append(
            Strike(
                how,
                _victims(chance, kinds, names),
                chance.uniform(*(AWAY if how == "kill" else PAUSED)),
                chance.uniform(*REST),
            )
        )
        left -= strikes[-1].seconds + strikes[-1].rest
        if left <= 0:
            break
    return strikes


def _deck(chance: random.Random, cards: Sequence[Card]) -> Iterator[Card]:
    while True:
        yield from chance.sample(cards, len(cards))


def _victims(chance: random.Random, kinds: Sequence[Kind], names: Mapping[Kind, Sequence[str]]) -> tuple[str, ...]:
    chosen: list[str] = []
    for kind in kinds:
        chosen.append(chance.choice([name for name in names[kind] if name not in chosen]))
    return tuple(chosen)
