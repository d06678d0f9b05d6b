"""The command: compares the working tree with a commit, and prints the table."""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.against import pairs, sides, table
from benchmarks.against.pairs import Run, Runs
from benchmarks.against.sides import SideError
from benchmarks.against.sizes import FULL, TINY, Sizes
from benchmarks.against.targets import BASE, NEW, PEERS, SLOW, Unit, rows
from benchmarks.conditions import PROFILES

PAIRS = 10
GROWTH_PAIRS = 1
"""Pairs of the slow workloads; a pair of W5 can take hours."""


def compare(options: argparse.Namespace) -> int:
    """Compare, print and write; return the exit code.

    A side that cannot be prepared gives 1; for the rest see `exit_code`. A peer that is not installed changes nothing.
    """
    sizes = TINY if options.tiny else Sizes(behind=options.sizes or FULL.behind, jobs=options.jobs)
    selected, runs = rows(sizes, options.workloads, profiles=PROFILES[options.profile]), Runs()

    def pairs_of(unit: Unit) -> int:
        return options.growth_pairs if unit.workload in SLOW else options.pairs  # type: ignore[no-any-return]

    def keep() -> list[table.Line]:
        filled = table.lines(selected, runs)
        if options.json:
            written = json.dumps(table.as_json(filled, runs), indent=2)
            options.json.write_text(written + "\n", encoding="utf-8")
        return filled

    def after(run: Run) -> None:
        keep()
        failed = f": not run: {run.reason}" if run.metrics is None else ""
        print(f"pair {run.pair}, {run.unit}, {run.system}{failed}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="tocsin-against-") as name:
        folder = Path(name)
        try:
            base, new = sides.base(options.against, folder), sides.new(folder)
        except SideError as error:
            print(f"The comparison cannot start: {error}", file=sys.stderr, flush=True)
            return 1
        print(f"base: {base.commit}; new: {new.commit}", flush=True)
        systems = {side.name: pairs.side(side, new, sizes, folder) for side in (base, new)}
        for peer in options.peers or PEERS:
            systems[peer] = pairs.other(peer, options.peers_python, sizes, runs.versions)
        try:
            pairs.measure(pairs.steps(selected, pairs_of), systems, runs, after)
        except KeyboardInterrupt:
            print("interrupted: the table has what was measured before", file=sys.stderr, flush=True)
    filled = keep()
    print(f"\n{table.text(filled, runs.versions)}\n{table.load(runs)}", flush=True)
    return exit_code(filled, runs, check=options.check)


def exit_code(filled: list[table.Line], runs: Runs, *, check: bool) -> int:
    """Return the exit code of a comparison.

    It is 1 if the working tree lacks a figure, or, if `check` is set, if a target is missed or the base lacks a figure.
    """
    incomplete = any(line.new is None for line in filled)
    failed = any(run.metrics is None for run in runs.runs if run.system == NEW)
    missed = check and any(line.verdict == table.MISSED for line in filled)
    not_run = check and any(line.verdict == table.NOT_RUN for line in filled if line.row.other in {None, BASE})
    return int(incomplete or failed or missed or not_run)
