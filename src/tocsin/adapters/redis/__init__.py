"""The history in Redis, for installations that have no SQL database: the same rows, lists and guarantees.

keys.py       how everything is named
rows.py       records to hashes and back
recording.py  one batch of facts, in one transaction
lists.py      pages out of sorted sets
history.py    the port
"""

from .history import RedisHistory, open_history

__all__ = ["RedisHistory", "open_history"]
