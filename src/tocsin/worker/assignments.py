"""Tasks that the matcher claimed in this worker's name."""

from collections import OrderedDict
from typing import Final

from .. import telemetry
from ..domain import agent
from ..subjects import entity_of
from .assigned_task import AssignedTask
from .cancellations import Cancellations
from .held_tasks import HeldTasks
from .task_pool import TaskPool

REMEMBERED_CLAIMS: Final = 10_000
"""The number of claims by which a task that is handed over again is recognized."""

_log = telemetry.get_logger("tocsin.worker")


class AssignedTasks:
    """The tasks that arrive, each started once."""

    def __init__(self, pool: TaskPool, held_tasks: HeldTasks, cancellations: Cancellations) -> None:
        """Start tasks in `pool`, unless their execution is over."""
        self._pool = pool
        self._held_tasks = held_tasks
        self._cancellations = cancellations
        self._known: OrderedDict[int, bool] = OrderedDict()
        """The claims that arrived, and whether each was handed back."""

    def receive(self, message: bytes) -> None:
        """Take an assigned task, which may arrive twice."""
        try:
            assignment, body = agent.unframed(message)
        except ValueError as error:
            _log.warning("assigned task unreadable", action="assignment-unreadable", error=str(error))
            return
        claim = assignment.claim
        if claim in self._known:
            if self._known[claim]:
                self._held_tasks.hand_back(claim)
        elif not self._cancellations.is_over(entity_of(assignment.subject)):
            self._remember(claim, was_handed_back=False)
            self._pool.take(AssignedTask(assignment, body, self.hand_back))

    def hand_back(self, claim: int) -> None:
        """Let the next hold list say that the task does not run here."""
        self._remember(claim, was_handed_back=True)
        self._held_tasks.hand_back(claim)

    def _remember(self, claim: int, *, was_handed_back: bool) -> None:
        self._known[claim] = was_handed_back
        if len(self._known) > REMEMBERED_CLAIMS:
            self._known.popitem(last=False)
