"""The exit codes, which scripts may rely on."""

from enum import IntEnum
from typing import Final


class Exit(IntEnum):
    """What a process ended with."""

    OK = 0
    NO = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    INTERRUPTED = 5
    UNFORESEEN = 6


MEANINGS: Final = {
    Exit.OK: "it is done, or the answer is yes",
    Exit.NO: "the answer is no: there are differences, or somebody declined",
    Exit.USAGE: "the command, a setting, a file or a definition cannot be read, or not be used as it is written",
    Exit.NOT_FOUND: "there is no such job, execution, dead letter or token",
    Exit.UNREACHABLE: "NATS or the database cannot be reached, or is not set up",
    Exit.INTERRUPTED: "it was interrupted before it was done",
    Exit.UNFORESEEN: "something nobody foresaw; --log-level debug shows where",
}

HELP: Final = "Exit codes: " + " · ".join(f"{code.value} {meaning}" for code, meaning in MEANINGS.items())
