"""`python -m tests.house`: print each figure beside its limit; exit 1 if a figure is above.

`--write` lowers each limit to its figure, and raises none. `--names` prints the modules and functions that count too.
`--firing` also runs `tocsin dev` and counts the files and functions of one firing of the simplest job.
"""

import argparse
import sys

from tests.house.firing import files_of_one_firing
from tests.house.limits import LIMITS, above, lowered, read, write
from tests.house.measure import ROOT, House


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.house", description=__doc__)
    parser.add_argument("--write", action="store_true", help="lower each limit to its figure")
    parser.add_argument("--names", action="store_true", help="print the modules and functions that count")
    parser.add_argument("--firing", action="store_true", help="run one firing and count its files; needs nats-server")
    options = parser.parse_args(arguments)
    house = House()
    figures = house.figures()
    limits = read()
    if options.firing:
        figures |= files_of_one_firing()
    for name, figure in figures.items():
        mark = "  ABOVE" if figure > limits.get(name, figure) else ""
        print(f"{name:48} {figure:>8,} {limits.get(name, '-'):>8,}{mark}")  # noqa: T201 - a command's answer
    if options.names:
        for title, names in house.names().items():
            print(f"\n{title}", *names, sep="\n  ")  # noqa: T201 - a command's answer
    if options.write:
        write(lowered(limits, figures))
        print(f"wrote {LIMITS.relative_to(ROOT)}")  # noqa: T201 - a command's answer
    return 1 if above(figures, limits) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
