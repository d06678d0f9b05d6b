"""English schedules of `hip-62`, and similar phrases, parsed into cron expressions.

A grammar (`phrases.lark`) parses the text into clauses. The clauses are combined into one meaning, and the meaning is written as the
smallest set of cron expressions. An ambiguous phrase is refused with a suggestion.
"""

from .compose import Phrase, parse_phrase

__all__ = ["Phrase", "parse_phrase"]
