"""How long to wait before trying again what the world refused."""

from typing import Final

FIRST: Final = 0.1
LONGEST: Final = 5.0
_DOUBLINGS_TO_LONGEST: Final = 6


def delay(failures: int) -> float:
    """Seconds to wait after so many failures (1 is the first): 0.1, 0.2, 0.4 … and never more than 5."""
    return min(FIRST * 2.0 ** min(failures - 1, _DOUBLINGS_TO_LONGEST), LONGEST)
