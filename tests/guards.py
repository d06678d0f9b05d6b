"""The guard strings of stored messages.

On a replicated stream a guard sees a message in flight only if that carries the same guard string. So every message of a
scope must carry that scope's one string, letter for letter.
"""

from tocsin import subjects
from tocsin.adapters.nats.client.connection import Connection
from tocsin.adapters.nats.client.names import Names
from tocsin.adapters.nats.log.direct_get import DirectGet
from tocsin.subjects import DecodeError, Stream

GUARD = "Nats-Expected-Last-Subject-Sequence-Subject"
UNGUARDED = ("trigger.", "cancel.", "enqueue.", "report.", "timer.", "delay.", "leadership.")
"""Inputs, and the terms of leaders: each is stored once by its id, and no decision is guarded by its subject."""


async def other_guards(connection: Connection, names: Names) -> list[str]:
    """Return the stored events whose guard string is not that of their scope."""
    other: list[str] = []
    for stream in (Stream.LEDGER, Stream.LOG):
        for stored in await DirectGet(connection, names.stream(stream)).scan(">"):
            subject = names.from_wire(stored.subject)
            if subject.startswith(UNGUARDED):
                continue
            try:
                scope = subjects.scope_of(subjects.decode(subject, stored.body))
            except DecodeError:
                continue
            if stored.headers.get(GUARD) != names.to_wire(scope):
                other.append(f"{subject} {stored.sequence}: {stored.headers.get(GUARD)} instead of {scope}")
    return other
