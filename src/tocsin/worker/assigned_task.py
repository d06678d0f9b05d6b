"""A task that the matcher assigned to this worker."""

from collections.abc import Callable

from pydantic import JsonValue

from ..domain.agent import Assignment


class AssignedTask:
    """A task with the claim on it, which the matcher stored in this worker's name."""

    __slots__ = ("_assignment", "_hand_back", "body")

    def __init__(self, assignment: Assignment, body: bytes, hand_back: Callable[[int], None]) -> None:
        """`body`: as published; `hand_back` takes a claim whose task does not run here."""
        self._assignment = assignment
        self._hand_back = hand_back
        self.body = body

    @property
    def subject(self) -> str:
        """The relative subject."""
        return self._assignment.subject

    @property
    def delivery(self) -> int:
        """The delivery number of the claim, counted from 1."""
        return self._assignment.delivery

    @property
    def claim(self) -> int:
        """The sequence of the claim."""
        return self._assignment.claim

    @property
    def proof(self) -> str:
        """The secret that a report on the claim must carry."""
        return self._assignment.proof

    @property
    def after(self) -> int | None:
        """The sequence of the event before the claim; None: unknown."""
        return self._assignment.after

    @property
    def place_proof(self) -> str | None:
        """The secret that proves `after`."""
        return self._assignment.place_proof

    @property
    def epoch(self) -> int | None:
        """The epoch of this worker as the owner of the task's resource, if any."""
        return self._assignment.epoch

    @property
    def heartbeat(self) -> JsonValue:
        """The last heartbeat of an earlier attempt or delivery, if there is one."""
        heartbeat: JsonValue = self._assignment.heartbeat
        return heartbeat

    def hand_back(self) -> None:
        """Let the next hold list say that the task does not run here.

        The matcher assigns it again.
        """
        self._hand_back(self._assignment.claim)
