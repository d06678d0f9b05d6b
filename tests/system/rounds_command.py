"""The command of a measurement in rounds: its options, and the table that it prints."""

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tocsin import telemetry

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def figures(
    program: str,
    description: str | None,
    measure: Callable[[int, int], Coroutine[Any, Any, "DataclassInstance"]],
    *,
    rounds: int,
) -> dict[str, Any]:
    """Measure as the command line says, print the figures and their `problems`, and return both.

    `measure` takes the number of rounds, by default `rounds`, and the seed.
    """
    arguments = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    arguments.add_argument("--rounds", type=int, default=rounds)
    arguments.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    arguments.add_argument("--json", type=Path, help="write the figures to this file too")
    given = arguments.parse_args()
    terminal = Console()
    telemetry.configure("error")
    terminal.print(f"seed {given.seed}")
    found: dict[str, Any] = asdict(asyncio.run(measure(given.rounds, given.seed)))
    shown = Table(*(name.replace("_", " ") for name in found if name != "problems"))
    shown.add_row(*(str(value) for name, value in found.items() if name != "problems"))
    terminal.print(shown)
    for problem in found["problems"]:
        terminal.out(problem)
    if given.json:
        given.json.write_text(json.dumps(found, indent=2))
    return found
