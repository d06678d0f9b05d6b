"""Progress of an attempt, as its executor reports it."""

from math import isfinite
from typing import Final

from .text import printable

MAX_MESSAGE: Final = 200
"""Characters of a progress message that are kept and shown."""
MAX_DATA_BYTES: Final = 4_096
"""Bytes of the data of a progress, as JSON (ojs-progress §5.2)."""
MAX_CHECKPOINT_BYTES: Final = 16_384
"""Bytes of the details of a heartbeat, or of a checkpoint of the Open Job Spec, as JSON."""


def fraction_of(value: object) -> float | None:
    """Return a number as a fraction from 0 to 1; None: no number.

    A number outside, for example from rounding, becomes the nearer end.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return None
    return min(max(float(value), 0.0), 1.0)


def message_of(text: str) -> str:
    return printable(text[: 4 * MAX_MESSAGE])[:MAX_MESSAGE]
