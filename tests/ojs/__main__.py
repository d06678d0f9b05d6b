"""Play the public suite: `python -m tests.ojs [ID …]`.

The suite runs against its own `tocsin dev`. `--slow` plays only the cases that wait for whole minutes.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from .runner import Case, cases, played
from .served import Server, server
from .test_conformance import IMPOSSIBLE, SLOW


def main() -> int:
    """The result of the run."""
    parser = argparse.ArgumentParser(prog="python -m tests.ojs", description=__doc__)
    parser.add_argument("ids", nargs="*", metavar="ID", help="Only these.")
    parser.add_argument("--slow", action="store_true", help="Only those that wait for whole minutes.")
    parser.add_argument("--token", action="store_true", help="Ask for a token.")
    asked = parser.parse_args()
    chosen = [
        case
        for case in cases()
        if (case.id in asked.ids if asked.ids else (case.id in SLOW) == asked.slow and case.id not in IMPOSSIBLE)
    ]
    with tempfile.TemporaryDirectory() as folder, server(Path(folder), with_token=asked.token) as it:
        failed = asyncio.run(_play(chosen, it))
    sys.stdout.write(f"{len(chosen) - failed} of {len(chosen)} passed\n")
    return 1 if failed else 0


async def _play(chosen: list[Case], it: Server) -> int:
    failed = 0
    async with it.client() as client:
        for case in chosen:
            faults = await played(case, client)
            failed += bool(faults)
            sys.stdout.write(f"{'FAIL' if faults else 'pass'} {case.label}\n")
            sys.stdout.writelines(f"     {fault}\n" for fault in faults)
            sys.stdout.flush()
    return failed


if __name__ == "__main__":
    sys.exit(main())
