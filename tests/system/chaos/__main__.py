"""The command; it ends with 1 where anything is wrong."""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from tests.system import chaos as package
from tests.system.chaos.installations import SERVERS
from tests.system.chaos.running import RATE, chaos
from tocsin import telemetry


def main() -> int:
    """Run it and tell."""
    arguments = argparse.ArgumentParser(
        prog="python -m tests.system.chaos", description=package.__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    arguments.add_argument("--minutes", type=float, default=5.0)
    arguments.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    arguments.add_argument("--rate", type=float, default=RATE, help="triggers a second")
    arguments.add_argument("--separate", action="store_true", help="every stage in a process of its own")
    arguments.add_argument("--servers", type=int, choices=SERVERS, default=SERVERS[-1], help="nats-servers")
    arguments.add_argument(
        "--attack",
        action="store_true",
        help="programs outside, a worker's account and a viewer of the API attack meanwhile",
    )
    arguments.add_argument("--json", type=Path, help="write the outcome to this file too")
    arguments.add_argument("--keep", type=Path, help="work in this folder and leave stores and logs there")
    given = arguments.parse_args()
    terminal = Console()
    telemetry.configure("error")
    with tempfile.TemporaryDirectory(prefix="tocsin-chaos-") as folder:
        running = chaos(
            given.keep or Path(folder),
            seconds=60 * given.minutes,
            seed=given.seed,
            separate=given.separate,
            rate=given.rate,
            servers=given.servers,
            attack=given.attack,
            tell=terminal.out,
        )
        outcome = asyncio.run(running)
    terminal.print(outcome.table())
    for problem in outcome.wrong:
        terminal.out(problem)
    if given.json:
        given.json.write_text(json.dumps(outcome.as_json(), indent=2, default=str))
    return int(not outcome.is_clean)


if __name__ == "__main__":
    sys.exit(main())
