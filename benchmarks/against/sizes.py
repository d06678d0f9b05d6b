"""Sizes of the workloads of a comparison."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the workloads.

    Attributes:
        lag: jobs that are due at one second in W1, few and many.
        executions: of W2, and of each measurement of W4 and W5.
        latency: executions of W3, and of the job beside the graph while it is alone.
        behind: numbers of finished executions before W5 measures; the first is the base of its ratios.
        jobs: registered jobs of W6.
        steps: parallel steps of the graph.
        functions: functions of the worker, each with a job, in the measurements of the matcher.
        tasks: tasks that no worker can do: beside a lone execution, and at a restart.
        peers: jobs or tasks of a peer; None for the numbers of `benchmarks.peers`.
    """

    lag: tuple[int, int] = (1_000, 10_000)
    executions: int = 20_000
    latency: int = 300
    behind: tuple[int, ...] = (0, 1_000_000)
    jobs: int = 100_000
    steps: int = 1_000
    functions: tuple[int, ...] = (1, 10, 100, 300)
    tasks: tuple[int, int] = (50_000, 100_000)
    peers: int | None = None


FULL: Final = Sizes()
TINY: Final = Sizes(
    lag=(20, 60),
    executions=300,
    latency=20,
    behind=(0, 500),
    jobs=200,
    steps=20,
    functions=(1, 10),
    tasks=(200, 400),
    peers=50,
)
"""Shows that the command works; its figures say nothing."""
