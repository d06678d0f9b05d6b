"""The limit of each figure: the lowest value that was reached."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

LIMITS: Final = Path(__file__).with_name("limits.json")


def read() -> dict[str, int]:
    """Return the limit of each figure."""
    limits: dict[str, int] = json.loads(LIMITS.read_text("utf-8"))
    return limits


def write(limits: Mapping[str, int]) -> None:
    """Store the limits."""
    LIMITS.write_text(json.dumps(limits, indent=2) + "\n", "utf-8")


def lowered(limits: Mapping[str, int], figures: Mapping[str, int]) -> dict[str, int]:
    """Return the limits after these figures: none is higher than before. A new figure becomes its own limit."""
    known = {name: limit for name, limit in limits.items() if name not in figures}
    return {name: min(figure, limits.get(name, figure)) for name, figure in figures.items()} | known


def above(figures: Mapping[str, int], limits: Mapping[str, int]) -> dict[str, str]:
    """Return the figures above their limits, and those without a limit."""
    over = {name: f"{figure} > {limits[name]}" for name, figure in figures.items() if figure > limits.get(name, figure)}
    return over | dict.fromkeys(figures.keys() - limits.keys(), "no limit; run python -m tests.house --write")
