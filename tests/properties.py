"""The number of examples that properties are tried on."""

import os
from typing import Final

RANDOM: Final = "TOCSIN_TEST_RANDOM"
"""The variable that tries properties on more examples, and on others in each run."""
SHARE: Final = 3
"""Without the variable, one example of this number is tried, and always the same."""
LEAST: Final = 5
"""The smallest number to which the examples of a property are reduced."""


def examples(number: int) -> int:
    """Return how many of a number of examples this run tries."""
    return number if os.environ.get(RANDOM) else max(number // SHARE, min(number, LEAST))
