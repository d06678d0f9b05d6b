"""`python -m tests.prose [PATH ...]`: print what is not plain English; exit 1 if anything is printed."""

import sys
from pathlib import Path

from tests.prose.check import ROOT, findings, prose_files


def main(arguments: list[str]) -> int:
    """Check the named files and folders, or the whole repository."""
    paths = [Path(argument).resolve() for argument in arguments] or [ROOT]
    count = 0
    for file in prose_files():
        if any(file == path or path in file.parents for path in paths):
            for finding in findings(file):
                print(finding)  # noqa: T201 - a command's answer
                count += 1
    print(f"{count} findings" if count else "no findings")  # noqa: T201 - a command's answer
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
