"""The conditions under which a workload is measured."""

from dataclasses import dataclass
from typing import Final

SIZES: Final = (0, 100_000, 1_000_000)
JOBS: Final = 100_000
TASKS: Final = 50_000
PROFILES: Final = {"default": (False,), "durable": (True,), "both": (False, True)}


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions that the command line sets.

    Attributes:
        sync_always: whether the server flushes every write to disk before it acknowledges the write.
        sizes: numbers of finished executions before W5 measures; the first is the base of the ratios.
        jobs: the number of registered jobs of W6.
        tasks: the number of tasks that no worker can do, of `unserved`, and of completed executions, of `restart`.
    """

    sync_always: bool = False
    sizes: tuple[int, ...] = SIZES
    jobs: int = JOBS
    tasks: int = TASKS

    def title(self, workload: str) -> str:
        """Return the title of a workload under these conditions."""
        return f"{workload} durable" if self.sync_always else workload
