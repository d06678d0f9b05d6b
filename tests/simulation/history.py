"""A history in memory: the folds of `domain.history`, and a place that moves with them."""

from collections.abc import Sequence

from tocsin.domain import dead_letter, history
from tocsin.domain.dead_letter import Letter
from tocsin.domain.events import Message, Recorded
from tocsin.domain.execution_record import ExecutionRecord
from tocsin.ports import SequenceConflict
from tocsin.subjects import Stream


class InMemoryHistory:
    """Records by execution, dead letters by id, and how far each stream is recorded."""

    def __init__(self) -> None:
        """Empty."""
        self.executions: dict[str, ExecutionRecord] = {}
        self.dead_letters: dict[tuple[str, str], Letter] = {}
        self._offsets = dict.fromkeys(Stream, 0)

    def offset_now(self, stream: Stream) -> int:
        """The last sequence that is folded in."""
        return self._offsets[stream]

    def record_now(self, stream: Stream, messages: Sequence[Recorded[Message]], *, after: int, upto: int) -> None:
        """Fold messages in and move the place, or raise `SequenceConflict`."""
        if self._offsets[stream] != after:
            raise SequenceConflict(f"{stream} is recorded up to {self._offsets[stream]}, not {after}")
        self.executions.update(history.fold(self.executions, messages))
        self.dead_letters.update(dead_letter.dead_letters(messages))
        self._offsets[stream] = upto
