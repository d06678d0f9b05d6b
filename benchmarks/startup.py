"""CPU time and imports of short commands, as a multiple of an empty Python program.

    python -m benchmarks.startup [--runs 10] [--nats URL]

`jobs list` is measured only with --nats, because it needs a server. Runs alternate between the programs, so that a busy
machine slows all of them alike.
"""

import argparse
import resource
import subprocess
import sys
from statistics import median
from typing import Final

EMPTY: Final = ("-c", "pass")
TOCSIN: Final = ("-m", "tocsin")


def cpu_seconds(arguments: tuple[str, ...]) -> float:
    """Run Python once and return the user and system time that the process took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)  # noqa: S603 - our own programs
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def imports(arguments: tuple[str, ...]) -> int:
    """Return the number of modules that a program imports."""
    done = subprocess.run(  # noqa: S603 - our own programs
        [sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=True
    )
    return sum(line.startswith("import time:") for line in done.stderr.splitlines()) - 1


def main() -> None:
    """Measure, and print one line for each program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="how often each program runs")
    parser.add_argument("--nats", metavar="URL", help="an initialized NATS server, for `jobs list`")
    options = parser.parse_args()
    programs = {
        "python -c pass": EMPTY,
        "import tocsin.Worker": ("-c", "from tocsin import Worker"),
        "tocsin --version": (*TOCSIN, "--version"),
        "tocsin --help": (*TOCSIN, "--help"),
    }
    if options.nats:
        programs["tocsin jobs list"] = (*TOCSIN, "jobs", "list", "--nats", options.nats)
    for arguments in programs.values():
        cpu_seconds(arguments)  # fill the caches of the file system and of compiled modules
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(options.runs):
        for name, arguments in programs.items():
            seconds[name].append(cpu_seconds(arguments))
    empty = median(seconds["python -c pass"])
    for name, arguments in programs.items():
        took = median(seconds[name])
        print(f"{name:<22} {took:6.3f} s CPU  {took / empty:6.1f} x  {imports(arguments):5} imports")


if __name__ == "__main__":
    main()
