"""Under which conditions a workload is measured."""

from dataclasses import dataclass
from typing import Final

SIZES: Final = (0, 100_000, 1_000_000)
PROFILES: Final = {"default": (False,), "durable": (True,), "both": (False, True)}


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the command line asks for.

    Attributes:
        sync_always: whether the server flushes every write to the disk before it acknowledges it.
        sizes: executions that are over before W5 measures, the first of them what the others are compared with.

    """

    sync_always: bool = False
    sizes: tuple[int, ...] = SIZES

    def title(self, workload: str) -> str:
        """What a workload is called under them."""
        return f"{workload} durable" if self.sync_always else workload
