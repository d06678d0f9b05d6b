"""The rate at which tasks start."""

from .message import Message


class StartRate(Message):
    """The rate at which tasks start: a token bucket for each `key`.

    It counts the starts of all tasks with the same fields together.
    """

    key: str
    """The name by which starts are counted together."""
    limit: int
    """The number of tasks that start in each `per`."""
    per: float
    """Seconds."""
    burst: int
    """The number of tasks that may start at once after a pause."""
