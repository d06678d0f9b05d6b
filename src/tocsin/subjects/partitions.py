"""The partition of a job.

All messages about a job belong to one partition, so that a single stream orders them and guards see them. The partition is
the FNV-1a hash (32 bits) of the job's token modulo the number of partitions: a subject mapping of NATS with
`{{partition(N,1)}}` computes the same.
"""

from functools import lru_cache
from typing import Final

from .names import ANY, WILDCARDS

PARTITIONS: Final = 1
"""The number of partitions that streams, stages and history support."""
_OFFSET: Final = 0x811C9DC5
_PRIME: Final = 0x01000193
_MASK: Final = 0xFFFFFFFF


@lru_cache(maxsize=16_384)
def partition_of(job_token: str, partitions: int) -> int:
    """Return the number of a job's partition, from 0.

    `job_token` is the job's name as `token` converts it.
    """
    digest = _OFFSET
    for byte in job_token.encode():
        digest = (digest ^ byte) * _PRIME & _MASK
    return digest % partitions


def partition(subject: str) -> int:
    """Return the partition whose stream stores a subject."""
    token = partition_token(subject, PARTITIONS)
    return 0 if token == ANY else int(token)


def partition_token(relative: str, partitions: int) -> str:
    """Return the partition in a subject or filter.

    It is the wildcard for a filter over all jobs. Events of leader leases and of agents belong to partition 0.
    """
    if partitions == 1:
        return "0"
    kind, *tokens = relative.split(".")
    if kind in {"leadership", "agent"}:
        return "0"
    if kind == "cron":
        del tokens[0]
    if not tokens or tokens[0] in WILDCARDS:
        return ANY
    match kind:  # the subject of a request may contain the dots of a name
        case "trigger":
            job = "_".join(tokens)
        case "cancel":
            job = "_".join(tokens[:-1])
        case _:
            job = tokens[0]
    return str(partition_of(job, partitions))
