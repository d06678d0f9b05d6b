"""Who asked."""

from .message import Message


class Actor(Message):
    """Who asked, for the audit trail (hip-62, Audit Trail)."""

    identity: str
    source: str | None = None
