"""Names as tokens of a subject, and back."""

from functools import lru_cache
from typing import Final

DEFAULT_QUEUE: Final = "default"
NO_DELIVERY: Final = "-"  # no delivery named
ANY: Final = "*"
"""No name, though a server stores what somebody publishes under it; read again it would stand for every name."""
REST: Final = ">"
WILDCARDS: Final = frozenset((ANY, REST))


@lru_cache(maxsize=16_384)
def token(name: str) -> str:
    """A job's or queue's name as one subject token: reversible, since names hold no underscore."""
    return name.replace(".", "_")


def name(of_token: str) -> str:
    """The name that `token` made a token of."""
    return of_token.replace("_", ".")


def dotted(job: str) -> str:
    """A name with its dots, as hip-62 writes it, unless they make an empty token."""
    return job if all(job.split(".")) else token(job)
