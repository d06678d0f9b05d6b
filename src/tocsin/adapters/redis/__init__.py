"""The history in Redis, for installations without a SQL database: same rows, lists and guarantees.

keys.py          the names of all keys
rows.py          records to hashes and back
batch_writer.py  a batch of facts in one transaction
pages.py         pages from sorted sets
expiry.py        removal of old executions and dead letters
history.py       the port
"""

from .history import RedisHistory, open_history

__all__ = ["RedisHistory", "open_history"]
