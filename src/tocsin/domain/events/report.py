"""An input: what an executor answers."""

from typing import Literal

from pydantic import JsonValue

from .failure import Failure
from .message import Message, Sequence


class Report(Message):
    """What became of one attempt, as its executor answers; `token` is the task's.

    Without a delivery the current one is meant.
    `claim` and `claimed_after` are the sequences of the `started` fact and of the fact before it: whoever folded the
    execution up to the latter needs not read the log again.
    """

    v: Literal[1] = 1
    type: Literal["report"] = "report"
    job: str
    execution_id: str
    outcome: Literal["completed", "failed"]
    step: str
    attempt: int
    token: str
    delivery: int | None = None
    result: JsonValue = None
    error: Failure | None = None
    worker: str | None = None
    claim: Sequence | None = None
    claimed_after: Sequence | None = None
