"""The history in Redis, for installations without a SQL database: same rows, lists and guarantees."""

from .history import RedisHistory, open_history

__all__ = ["RedisHistory", "open_history"]
