"""How a process that runs for long, and remembers much, collects garbage.

Python looks at every object that has survived whenever enough new ones have: with tens of thousands of remembered
executions that was a third of a stage's work, and it found next to nothing, since what the stages drop is freed by its
reference count.
"""

import gc
from typing import Final

THRESHOLDS: Final = (100_000, 20, 100)
"""Objects made before the youngest are looked at, and how many such looks before older ones are."""


def collect_patiently() -> None:
    """Leave out what is imported by now, and look at the rest more rarely. To be called once, when a process begins."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
