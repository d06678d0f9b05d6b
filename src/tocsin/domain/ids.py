"""Identities made from facts, so that every copy of a stage gives the same thing the same name.

An id is a UUIDv7 whose time is the instant that it stands for and whose random bits are a digest of what it names:
deciding twice names twice the same, and ids sort by time. Draws of chance (the jitter of a retry) come from the same
digest, so that a redelivered message draws the same again.
"""

from datetime import UTC, datetime, timedelta
from hashlib import blake2b

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_VERSION = 0x7000
_VARIANT = 0x8000_0000_0000_0000


def occurrence_id(job: str, scheduled_time: datetime, shard: str = "") -> str:
    """The id of the one execution of a job (and shard) for one scheduled instant."""
    return _uuid7(scheduled_time, "occurrence", job, scheduled_time.isoformat(), shard)


def passed_id(job: str, scheduled_time: datetime) -> str:
    """The id under which an instant is skipped that never was to fire.

    Its own space: a local time that the clocks left out may fall on an instant that fires.
    """
    return _uuid7(scheduled_time, "passed", job, scheduled_time.isoformat())


def trigger_id(job: str, message_id: str, at: datetime, shard: str = "") -> str:
    """The id of the execution that one trigger message asks for: its own space, no scheduled instant is used up."""
    return _uuid7(at, "trigger", job, message_id, shard)


def replay_id(job: str, dead_letter: str, number: int, at: datetime) -> str:
    """The id of the execution that one replay of a dead letter asks for; `at`: when the log stored that."""
    return _uuid7(at, "replay", job, dead_letter, str(number))


def backfill_id(job: str, name: str, scheduled_time: datetime) -> str:
    """The id of the execution by which a backfill makes up for one instant."""
    return _uuid7(scheduled_time, "backfill", job, name, scheduled_time.isoformat())


def job_id(job: str, registered_at: datetime) -> str:
    """The id under which a job is listed beside its name."""
    return _uuid7(registered_at, "job", job)


def report_token(key: bytes, execution_id: str, step: str, attempt: int) -> str:
    """What a report must carry to be believed: ids can be guessed, this cannot without the installation's key."""
    parts = f"{execution_id}:{step}:{attempt}".encode()
    return blake2b(parts, key=key, digest_size=16).hexdigest()


def fingerprint(key: bytes) -> str:
    """What an installation is known by to those who must not know its key."""
    return blake2b(b"installation", key=key, digest_size=8).hexdigest()


def draw(*parts: str) -> float:
    """A number in [-1, 1) that is always the same for the same parts."""
    return int.from_bytes(_digest("draw", *parts)[:7], "big") / 2**55 - 1


def _uuid7(at: datetime, *parts: str) -> str:
    milliseconds = (at - _EPOCH) // _MILLISECOND
    random = int.from_bytes(_digest(*parts), "big")
    high = (milliseconds & 0xFFFF_FFFF_FFFF) << 16 | _VERSION | random >> 116
    low = _VARIANT | random & 0x3FFF_FFFF_FFFF_FFFF
    digits = f"{high:016x}{low:016x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _digest(*parts: str) -> bytes:
    # Lengths go in with the parts, so that ("ab", "c") and ("a", "bc") differ.
    digest = blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(4, "big"))
        digest.update(encoded)
    return digest.digest()
