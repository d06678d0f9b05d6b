"""Ids derived from events, so that every copy of a stage computes the same id.

An id is a UUIDv7. Its time is the instant that it stands for, and its random bits are a digest of its name. Making a
decision twice therefore produces the same id, and ids sort by time. Random draws (the jitter of a retry) come from the
same digest, so that a redelivered message draws the same number.
"""

import re
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from json.encoder import encode_basestring_ascii as _quoted
from typing import Final
from urllib.parse import quote

MAX_TRIGGER_TOKEN_LENGTH: Final = 128
"""Characters of a message's id, encoded, that are part of a subject."""
OWN_REQUESTS: Final = "api"
"""The first token of the ids of triggers that the API and operators publish. No program outside has this name."""
_BY_SEQUENCE: Final = "seq-"
_ID: Final = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEYED: Final = datetime(2020, 1, 1, tzinfo=UTC)
"""The time of ids that are made of a key alone."""
_SECONDS_OF_A_DAY = 86_400
_VARIANT: Final = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}
"""The first digit of the last part but one, by a random digit."""


def occurrence_id(job: str, scheduled_time: datetime) -> str:
    """Return the id of the only execution for a scheduled instant."""
    return _uuid7(scheduled_time, "occurrence", job, scheduled_time.isoformat(), "")


def passed_id(job: str, scheduled_time: datetime) -> str:
    """Return the id under which an instant that never fires is skipped.

    These ids have their own namespace, because a skipped local time may fall on an instant that fires.
    """
    return _uuid7(scheduled_time, "passed", job, scheduled_time.isoformat())


def trigger_id(job: str, message_id: str, at: datetime) -> str:
    """Return the id of the execution that a trigger message requests."""
    return _uuid7(at, "trigger", job, message_id, "")


def sequence_trigger_id(job: str, sequence: int, at: datetime) -> str:
    """Return the id of the execution for a trigger message without an id."""
    return _uuid7(at, "trigger-sequence", job, str(sequence))


def public_trigger_id(
    publisher: str, job: str, at: datetime, *, key: str | None, message_id: str | None, sequence: int
) -> str:
    """Return the id of the execution for a trigger that a program outside published.

    Each program has its own namespace, and in it keys, message ids and sequences have theirs. So no choice of a key or an id
    meets a trigger of another publisher. `publisher`: the name of the program; empty: it has no account of its own.
    """
    if key is not None:
        return _uuid7(KEYED, "public", publisher, "key", job, key)
    if message_id:
        return _uuid7(at, "public", publisher, "message", job, message_id)
    return _uuid7(at, "public", publisher, "sequence", job, str(sequence))


def answer_id(publisher: str | None, message_id: str | None, sequence: int) -> str:
    """Return the end of the subject of a trigger's answer, after the job.

    It is the message's id, percent-encoded where a subject requires it, or `seq-` and its sequence, if it has no id or a long one. The
    name of its publisher (`api` for the API and operators, which `publisher` None means) and a dot precede it. So a program cannot answer for the trigger of another. A program without an account of its own has no name.
    """
    encoded = "" if message_id is None else quote(message_id, safe="", errors="replace").replace(".", "%2E")
    if not encoded or len(encoded) > MAX_TRIGGER_TOKEN_LENGTH:
        token = f"{_BY_SEQUENCE}{sequence}"
    else:  # an id that begins like a sequence is encoded there, so that the two never meet
        token = encoded.replace(_BY_SEQUENCE, "seq%2D", 1) if encoded.startswith(_BY_SEQUENCE) else encoded
    name = OWN_REQUESTS if publisher is None else publisher
    return f"{name}.{token}" if name else token


def enqueued_id(key: str, number: int, at: datetime) -> str:
    """Return the id of a job that a request with an idempotency key enqueues.

    `key`: the request; `number`: the place of the job in it; `at`: when the key was first used.
    """
    return _uuid7(at, "enqueued", key, str(number))


def keyed_trigger_id(job: str, key: str) -> str:
    """Return the id of the only execution for an idempotency key.

    A retried request is stored at another time, so the time of these ids means nothing.
    """
    return _uuid7(KEYED, "key", job, key)


def event_execution_id(job: str, source: tuple[str, ...], key: str) -> str:
    """Return the id of the only execution for a key of events.

    `source`: the identity of the source of the events among those of the job. Keys of the API and of other sources have other ids.
    """
    return _uuid7(KEYED, "event", job, *source, "key", key)


def event_durable(job: str, source: tuple[str, ...]) -> str:
    """Return the name of the durable for a source of a job."""
    return _digest("durable", job, *source).hex()


def debounce_window(trigger_id: str, key: str) -> str:
    """Return the id of a key's window; `trigger_id`: the name of its durable."""
    return _digest("debounce", trigger_id, key).hex()


def ignored_event_id(key: bytes, trigger_id: str, stream: str, sequence: int, at: datetime) -> str:
    """Return the message id under which an event that started nothing is recorded once.

    `at`: when the stream stored it. A stream that was made again repeats sequences, at other times.
    """
    return keyed_digest(key, "ignored", trigger_id, stream, sequence, at.isoformat())


def replay_id(job: str, dead_letter: str, number: int, at: datetime) -> str:
    """Return the id of the execution for a replay stored at `at`."""
    return _uuid7(at, "replay", job, dead_letter, str(number))


def backfill_id(job: str, name: str, scheduled_time: datetime) -> str:
    """Return the id of the execution that runs a past instant in a backfill."""
    return _uuid7(scheduled_time, "backfill", job, name, scheduled_time.isoformat())


def event_id(kind: str, job: str, at: datetime, *parts: str) -> str:
    """Return the id of a public event; `parts` distinguish events of a kind and job."""
    return _uuid7(at, "event", kind, job, *parts)


def notification_id(job: str, at: datetime, kind: str, channel: str, about: str) -> str:
    """Return the id of a notification; `about`: its execution's id, or its instant."""
    return _uuid7(at, "notification", job, kind, channel, about)


def shard_execution_id(occurrence: str, shard: str) -> str:
    """Return the id of the execution on a shard.

    `occurrence` is the id that the only execution of the occurrence or trigger would have. Both ids have the same time.
    """
    milliseconds = int(occurrence[:8] + occurrence[9:13], 16)
    return _uuid7(_EPOCH + timedelta(milliseconds=milliseconds), "shard", occurrence, shard)


def agent_id(name: str, at: datetime, noise: str) -> str:
    """Return the id of a worker process that started at `at`; `noise` is random."""
    return _uuid7(at, "agent", name, noise)


def job_id(job: str, registered_at: datetime) -> str:
    return _uuid7(registered_at, "job", job)


def report_token(key: bytes, execution_id: str, step: str, attempt: int) -> str:
    """Return the secret of an attempt, which its workers receive with the task.

    Ids can be guessed. The token cannot be computed without the key of the installation.
    """
    parts = f"{execution_id}:{step}:{attempt}".encode()
    return blake2b(parts, key=key, digest_size=16).hexdigest()


def claim_proof(key: bytes, execution_id: str, step: str, attempt: int, claim: int | None) -> str:
    """Return the secret that a report on a claim must carry.

    `claim` is the sequence of the claim. Only the worker of the claim receives it. Another worker of the same attempt, before or after it, has the same token and
    another proof. With `claim` None it proves a report of a stage on the current claim, and no worker receives it.
    """
    parts = f"{execution_id}:{step}:{attempt}:{claim or 0}".encode()
    return blake2b(parts, key=key, digest_size=16, person=b"claim").hexdigest()


def seal(secret: str, job: str = "") -> str:
    """Return the part of subjects that only the holder of a secret can name.

    A reader that knows the secret reads the subjects with its seal, and meets nothing of other workers. `job` is the token of
    the job, if the seal binds it too.
    """
    return blake2b(f"subject{job}".encode(), key=secret.encode()[:64], digest_size=8).hexdigest()


def report_id(proof: str, subject: str) -> str:
    """Return the message id under which a report is stored once.

    `subject` may say more than the report's subject. Ids are one space for all publishers of a stream: another worker, which
    does not know the proof of the claim, cannot store a message under this id first.
    """
    return blake2b(subject.encode(), key=proof.encode()[:64], digest_size=16).hexdigest()


def keyed_digest(key: bytes, *parts: str | int | None) -> str:
    """Return a secret that proves all its parts to the holder of the key."""
    # The text of `json.dumps(parts)`, which takes four times as long to make it.
    texts = [_quoted(part) if isinstance(part, str) else "null" if part is None else str(part) for part in parts]
    return blake2b(f"[{', '.join(texts)}]".encode(), key=key, digest_size=16).hexdigest()


def fingerprint(key: bytes) -> str:
    """Return a public identifier of an installation, derived from its secret key."""
    return blake2b(b"installation", key=key, digest_size=8).hexdigest()


def is_execution_id(text: str) -> bool:
    """Return whether a text has the form of an execution's id."""
    return _ID.fullmatch(text) is not None


def time_of(execution_id: str) -> datetime | None:
    """Return the time (UTC) of an execution's id, in milliseconds; None: another form."""
    if not is_execution_id(execution_id):
        return None
    return _EPOCH + timedelta(milliseconds=int(execution_id[:8] + execution_id[9:13], 16))


def draw(*parts: str) -> float:
    """Return a number in [-1, 1) that is always the same for the same parts."""
    return int.from_bytes(_digest("draw", *parts)[:7], "big") / 2**55 - 1


def _uuid7(at: datetime, *parts: str) -> str:
    since = at - _EPOCH
    milliseconds = (since.days * _SECONDS_OF_A_DAY + since.seconds) * 1_000 + since.microseconds // 1_000
    time, random = f"{milliseconds & 0xFFFF_FFFF_FFFF:012x}", _digest(*parts).hex()
    return f"{time[:8]}-{time[8:]}-7{random[:3]}-{_VARIANT[random[16]]}{random[17:20]}-{random[20:]}"


def _digest(*parts: str) -> bytes:
    # The digest covers the lengths too, so that ("ab", "c") and ("a", "bc") differ.
    content = [len(part).to_bytes(4, "big") + part for part in map(str.encode, parts)]
    return blake2b(b"".join(content), digest_size=16).digest()
