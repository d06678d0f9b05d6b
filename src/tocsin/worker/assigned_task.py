"""An assigned task, as a delivery."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from ..domain.agent import Assignment
from .claim import Claimed


class AssignedTask:
    """An assigned task, as a `ports.Delivery`: no queue waits for its acknowledgement."""

    def __init__(self, assignment: Assignment, body: bytes, hand_back: Callable[[int], None]) -> None:
        """`hand_back` takes a claim whose task does not run here."""
        self._assignment = assignment
        self._body = body
        self._hand_back = hand_back

    @property
    def claimed(self) -> Claimed:
        """The claim in this worker's name."""
        return Claimed(self._assignment.claim, self._assignment.after)

    @property
    def subject(self) -> str:
        """The relative subject."""
        return self._assignment.subject

    @property
    def body(self) -> bytes:
        """The body as published."""
        return self._body

    @property
    def sequence(self) -> int:
        """The position in the stream."""
        return self._assignment.sequence

    @property
    def time(self) -> datetime:
        """The time (UTC) at which the log stored the task."""
        return self._assignment.time

    @property
    def message_id(self) -> str | None:
        """A task has none."""
        return None

    @property
    def delivered(self) -> int:
        """The delivery number of the claim."""
        return self._assignment.delivery

    async def ack(self) -> None:
        """Do nothing: the report, or the end of the execution, ends the claim."""

    async def nak(self, delay: float) -> None:  # noqa: ARG002 - the matcher decides when another agent gets it
        """Hand the task back, by the next hold list."""
        self._hand_back(self._assignment.claim)

    async def term(self) -> None:
        """Hand the task back, by the next hold list."""
        self._hand_back(self._assignment.claim)

    async def in_progress(self) -> None:
        """Do nothing: hold lists name the task."""

    @staticmethod
    async def ack_many(deliveries: Sequence[Any]) -> None:
        """Do nothing."""
