"""The history in Redis, for installations without a SQL database: same rows, lists and guarantees.

keys.py          the names of all keys, and records to hashes and back
batch_writer.py  a batch of facts in one transaction, and removal of old rows
"""

from .history import RedisHistory, open_history

__all__ = ["RedisHistory", "open_history"]
