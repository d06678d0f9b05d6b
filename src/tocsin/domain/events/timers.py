"""Inputs: what the log itself publishes when the time has come."""

from typing import Literal, TypeAlias

from .message import Message, Sequence


class LeaseTimer(Message):
    """The lease of a claim is over, unless there was a sign of life: then it was put off.

    `task` is the sequence of the task that was claimed, under its `delivery`. `ends_attempt`: the attempt's time limit is over
    as well. Whoever sets the timer says so, since a claim is stored a moment after its timer is set, and by another clock.
    """

    v: Literal[1] = 1
    type: Literal["lease-timer"] = "lease-timer"
    job: str
    execution_id: str
    step: str
    attempt: int
    delivery: int
    task: Sequence
    ends_attempt: bool = False


class ExpiryTimer(Message):
    """An execution that nobody has started by now is not to be started any more."""

    v: Literal[1] = 1
    type: Literal["expiry-timer"] = "expiry-timer"
    job: str
    execution_id: str


class RetryTimer(Message):
    """The delay before `attempt` of a step is over."""

    v: Literal[1] = 1
    type: Literal["retry-timer"] = "retry-timer"
    job: str
    execution_id: str
    step: str
    attempt: int


Timer: TypeAlias = RetryTimer | LeaseTimer | ExpiryTimer
