"""English as `hip-62` writes it, and what users would write next to it, read into cron expressions.

The text is read by a grammar (`phrases.lark`) into clauses, the clauses are put together into one meaning, and the
meaning is written down in as few cron expressions as can hold it. What could mean two things is refused with what to
write instead.
"""

from .compose import Phrase, parse_phrase

__all__ = ["Phrase", "parse_phrase"]
