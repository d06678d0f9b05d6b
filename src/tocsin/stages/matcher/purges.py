"""The cancellation of executions whose tasks were purged."""

from collections.abc import Sequence
from typing import Final

from ... import telemetry
from ...domain import execution
from ...domain.events import Cancelled, Message, Recorded
from ...domain.open_task import OpenTask
from ...domain.task_board import TaskBoard
from ...ports import Append, EventLog, OutdatedState
from .claims import learn_event
from .operator_decisions import OperatorDecisions

AT_ONCE: Final = 256
"""The greatest number of executions that are cancelled in one write."""

_log = telemetry.get_logger("tocsin.matcher")


class Purges:
    """Cancels the executions of purged tasks, some at a time.

    A purge is complete when none of its tasks waits. After a crash, the next leader finds the rest of them on its board.
    """

    def __init__(self, log: EventLog, board: TaskBoard, decisions: OperatorDecisions) -> None:
        self._log = log
        self._board = board
        self._decisions = decisions

    async def run_once(self) -> bool:
        """Cancel some executions; return whether there may be more.

        Raises:
            LogUnavailable: the log did not answer.
        """
        by_scope: dict[str, OpenTask] = {}
        for task in self._board.purged(limit=AT_ONCE):
            by_scope.setdefault(task.scope, task)  # the end of the execution ends its other tasks too
        if not by_scope:
            return False
        loaded = await self._log.load_each(*by_scope)
        ends: list[Append] = []
        is_learnt = False
        for task, facts in zip(by_scope.values(), loaded.facts, strict=True):
            if not facts:
                continue
            end = self._end(task, facts)
            if end is None:
                self._learn(task, facts)
                is_learnt = True
            else:
                ends.append(Append((end,), facts[-1].sequence))
        return await self._store(ends) or is_learnt

    def _end(self, task: OpenTask, facts: Sequence[Recorded[Message]]) -> Cancelled | None:
        purge = self._decisions.queue(task.queue).purge
        if purge is None:
            return None
        return next(iter(execution.purge(execution.fold(facts), purge, step=task.step, task=task.sequence)), None)

    def _learn(self, task: OpenTask, facts: Sequence[Recorded[Message]]) -> None:
        """Note which agent holds a task, or that no execution needs it."""
        for recorded in facts:
            learn_event(self._board, task.scope, recorded)
        if self._board.is_purged(task):
            self._board.withdraw(task)

    async def _store(self, ends: Sequence[Append]) -> bool:
        """Store ends of executions, and return whether any is stored."""
        error: Exception | None = None
        number = 0
        for end, written in zip(ends, await self._log.write(list(ends)), strict=True):
            if written.error is None:
                self._board.end_execution(end.scope)
                number += 1
            elif not isinstance(written.error, OutdatedState):  # then it is read again
                error = written.error
        if error is not None and not number:
            raise error
        if number:
            _log.info("executions of purged tasks cancelled", action="purged", number=number)
        return bool(number)
