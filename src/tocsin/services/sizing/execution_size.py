"""The messages and bytes of one execution, stream by stream."""

from collections.abc import Mapping
from dataclasses import dataclass

from .constants import Constants, Cost


@dataclass(frozen=True, slots=True)
class StreamSize:
    """Messages and bytes of a stream."""

    messages: float
    bytes: float


def execution_size(
    measured: Constants, *, steps: int = 1, input_bytes: int = 0, result_bytes: int = 0
) -> Mapping[str, StreamSize]:
    """Return the messages and bytes of an execution, by stream.

    It starts on a schedule, holds a lock and succeeds at once.

    Args:
        measured: the measured sizes.
        steps: the number of steps.
        input_bytes: the size of the job's input as JSON.
        result_bytes: the size of the result of each step as JSON.
    """

    def size(cost: Cost) -> StreamSize:
        return StreamSize(cost.messages, cost.bytes + cost.input * input_bytes + cost.result * result_bytes)

    if steps == 1:
        return {stream: size(cost) for stream, cost in measured.single.items()}
    found = {}
    for stream, cost in measured.graph.items():
        base, step = size(cost), size(measured.step[stream])
        found[stream] = StreamSize(base.messages + steps * step.messages, base.bytes + steps * step.bytes)
    return found
