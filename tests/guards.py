"""The guard strings of stored messages.

On a replicated stream a guard sees a message in flight only if that carries the same guard string. So every message of a
scope must carry that scope's one string, letter for letter.
"""

from contextlib import suppress

from tocsin import subjects
from tocsin.adapters.nats.client.connection import Connection
from tocsin.adapters.nats.client.names import Names
from tocsin.adapters.nats.log.announcer import NUMBER
from tocsin.adapters.nats.log.direct_get import DirectGet, Stored
from tocsin.ports import LogUnavailable
from tocsin.subjects import DecodeError, Stream

EXPECTED = "Nats-Expected-Last-Subject-Sequence"
GUARD = "Nats-Expected-Last-Subject-Sequence-Subject"
TRIES = 10
UNGUARDED = ("trigger.", "cancel.", "enqueue.", "report.", "timer.", "delay.", "leadership.")
"""Inputs, and the terms of leaders: each is stored once by its id, and no decision is guarded by its subject."""


def guarded(subject: str, *, prefix: str = "", expect: int = 0) -> dict[str, str]:
    """Return the headers of a decision with this subject."""
    return {EXPECTED: str(expect), GUARD: f"{prefix}{subjects.guard_of(subject)}"}


async def other_guards(connection: Connection, names: Names) -> list[str]:
    """Return the stored events whose guard string is not that of their scope."""
    other: list[str] = []
    for stream in (Stream.LEDGER, Stream.LOG):
        for stored in await _stored(DirectGet(connection, names.stream(stream))):
            subject = names.from_wire(stored.subject)
            if subject.startswith(UNGUARDED) or NUMBER in stored.headers:  # an announcer has a guard of its own
                continue
            try:
                scope = subjects.scope_of(subjects.decode(subject, stored.body))
            except DecodeError:
                continue
            if stored.headers.get(GUARD) != names.to_wire(scope):
                other.append(f"{subject} {stored.sequence}: {stored.headers.get(GUARD)} instead of {scope}")
    return other


async def _stored(messages: DirectGet) -> list[Stored]:
    """Return all messages of a stream, also if a loaded server answers late."""
    for _ in range(TRIES):
        with suppress(LogUnavailable):
            return await messages.scan(">")
    return await messages.scan(">")
