"""The streams, buckets and durables of an installation, as JetStream's JSON configuration.

Times are in nanoseconds. Only the settings that Tocsin depends on are named; all others (such as the placement) stay as
the operator set them.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from .... import subjects
from ....domain.commit import MAX_COMMIT_BYTES
from ....ports import DurableSpec, NotAllowed, UnsupportedLayout
from ....settings import Settings
from ....settings.channels import Notifications
from ....settings.model import Output
from ....settings.triggers import Triggers
from ....subjects import (
    INPUT_STREAMS,
    LAYOUT,
    LAYOUT_KEY,
    MAX_CHANGE_SIZE,
    MAX_INPUT_SIZE,
    OUTPUT_STREAMS,
    SERVER_STREAMS,
    Bucket,
    Stream,
)
from ..client import wire
from ..client.connection import Connection, Json
from ..client.names import Names

_SECOND: Final = 1_000_000_000
DUPLICATE_WINDOW_S: Final = 120
"""Within this time, a second message of the same id is not stored."""
SHORTEST_WINDOW_NS: Final = 100_000_000
"""The shortest window for message ids that the server accepts."""
MARKER_TTL_S: Final = 60
"""The server keeps the marker of an expired key this long."""
MAX_KEYS: Final = 1_000_000
"""Keys of a bucket. A full bucket refuses further keys, and stores new values of known keys."""
MAX_ANSWERS_BYTES: Final = 268_435_456
"""Bytes of the bucket of stored answers. A full bucket drops the oldest: their requests are handled again if they are repeated."""
MAX_WAITING: Final = 2_048
"""Requests for messages that may be open at a durable: one for each of its readers."""


_METADATA: Final = {LAYOUT_KEY: str(LAYOUT)}


ROOM_FOR_HEADERS: Final = 16_384
"""Bytes of a commit's headers at most."""
WEBHOOK_MAX_AGE_S: Final = 604_800
"""How long a request to a webhook waits for the event listener."""


def commits_config(names: Names) -> Json:
    """Return the configuration of the stream of the log of commits.

    It has no limits of age, size or number, since every process folds the whole log. A message of a user that may publish there is skipped,
    and cannot remove any: the stream has no rollups, schedules or lifetimes. No message is larger than a commit may be.
    """
    return {
        "name": names.commits_stream,
        "subjects": [f"{names.commits_prefix}.*"],
        "storage": "file",
        "compression": "s2",
        "retention": "limits",
        "discard": "new",
        "max_age": 0,
        "max_bytes": -1,
        "max_msgs": -1,
        "max_msgs_per_subject": -1,
        "max_msg_size": MAX_COMMIT_BYTES + ROOM_FOR_HEADERS,
        "allow_direct": True,
        "deny_delete": True,
        "metadata": _METADATA,
    }


def webhook_config(names: Names, size: int) -> Json:
    """Return the configuration of the stream of requests to webhooks.

    It is a work queue: a request stays until the event listener has handled it, also if its durable does not exist yet. A full stream
    refuses requests, so that their senders keep them. Their age is limited, because requests to a deleted job have no reader.
    """
    return {
        "name": names.webhook_stream,
        "subjects": [names.webhook("*")],
        "storage": "file",
        "compression": "s2",
        "retention": "workqueue",
        "discard": "new",
        "max_age": WEBHOOK_MAX_AGE_S * _SECOND,
        "max_bytes": size,
        "max_msg_size": MAX_INPUT_SIZE,
        "duplicate_window": DUPLICATE_WINDOW_S * _SECOND,
        "metadata": _METADATA,
    }


def captured_config(names: Names, triggers: Triggers) -> Json:
    """Return the configuration of the stream of messages that programs publish without a stream.

    It answers no publisher: their requests to each other have these subjects too, and a reply subject could name a stream of Tocsin.
    Publishers may be hostile, so it has no schedules, lifetimes, rollups or batches, and remembers ids for the shortest time that the
    server knows: a publisher could use up the ids of another.
    """
    return {
        "name": names.captured_stream,
        "subjects": list(triggers.subjects),
        "storage": "file",
        "compression": "s2",
        "retention": "limits",
        **_dropping(triggers),
        "no_ack": True,
        "duplicate_window": SHORTEST_WINDOW_NS,
        "metadata": _METADATA,
    }


def _dropping(limits: Triggers | Output | Notifications) -> Json:
    """Return the limits of a stream that drops its oldest messages when it is full."""
    age = int(limits.max_age * _SECOND)
    return {"discard": "old", "max_age": age, "max_bytes": limits.max_bytes, "deny_delete": True}


def stream_config(stream: Stream, names: Names, settings: Settings) -> Json:
    """Return the configuration of a main stream beside the stream of commits.

    No stream has schedules, because a user who publishes into such a stream can remove all its messages (`Nats-Rollup`), or make
    the server store any of its subjects. Public events leave with age: the log of commits and its archive have them.

    A stream of inputs is limited in size, and then refuses messages: their publishers may be hostile. That of programs
    outside is also limited in number, because the decision on a small message needs far more room than the message. It has no schedules, lifetimes or rollups, with which a publisher could make the server store other
    subjects, or remove messages.

    The streams of output are limited in age, in size, and for each subject, and drop their oldest messages, because a
    worker may say any number of things. Like streams of inputs, they have no schedules, lifetimes or rollups.

    The stream of notifications is limited in age and size too, because no decision on an execution rests on a notification.

    Events repeat names and subjects, so compression saves most of the disk. Every server from `OLDEST_SERVER` on has it.

    The stream of the MQ bridge is a work queue. An external worker's task is not needed once it was taken, because the
    log has it. A completion is not needed once the bridge has turned it into a report. Until then, neither is removed.
    A work queue also rejects a second reader of the same subjects, so no external worker can take completions. Its
    size is limited, because external workers may complete tasks faster than the bridge reads. While it is full, it refuses
    tasks too.
    """
    config: Json = {
        "name": names.stream(stream),
        "subjects": names.captured(stream),
        "storage": "file",
        "compression": "s2",
        "retention": "workqueue" if stream is Stream.MQ else "limits",
        "max_age": 0,
        "max_bytes": -1,
        "max_msgs": -1,
        "max_msgs_per_subject": -1,
        "duplicate_window": DUPLICATE_WINDOW_S * _SECOND,
        "allow_direct": True,
        "metadata": _METADATA,
    }
    archive = settings.archive
    if stream in INPUT_STREAMS:
        config |= {"discard": "new", "max_bytes": archive.input_bytes, "max_msg_size": MAX_INPUT_SIZE}
        config["deny_delete"] = stream is not Stream.REPORTS
        if stream is Stream.INPUTS:
            config["max_msgs"] = archive.outside_messages
        elif stream is Stream.REQUESTS:
            config |= {"allow_atomic": True, "max_msg_size": MAX_CHANGE_SIZE}  # jobs of one request are stored together
    elif stream in OUTPUT_STREAMS:
        bound = OUTPUT_STREAMS[stream]
        config |= _dropping(settings.output) | {"max_msgs_per_subject": bound.messages, "max_msg_size": bound.size}
    elif stream is Stream.NOTIFICATIONS:
        config |= _dropping(settings.notifications)
    elif stream is Stream.MQ:
        config |= {"discard": "new", "max_bytes": archive.input_bytes, "allow_msg_ttl": True}
    else:
        source, destination = names.republished()
        age = int(archive.hot_window * _SECOND) if archive.enabled else 0
        config |= {"deny_delete": True, "max_age": age, "republish": {"src": source, "dest": destination}}
        if age:  # nats-server refuses a longer window
            config["duplicate_window"] = min(DUPLICATE_WINDOW_S * _SECOND, age)
    return config


def bucket_config(bucket: Bucket, names: Names) -> Json:
    """Return the configuration of a KV bucket's stream."""
    is_cache = bucket is Bucket.ANSWERS
    return {
        "name": names.bucket_stream(bucket),
        "subjects": [names.key(bucket, ">")],
        "storage": "file",
        "retention": "limits",
        "discard": "old" if is_cache else "new",
        "max_bytes": MAX_ANSWERS_BYTES if is_cache else -1,
        "max_msgs": MAX_KEYS,
        "max_msgs_per_subject": 1,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
        "allow_msg_ttl": True,
        "subject_delete_marker_ttl": MARKER_TTL_S * _SECOND,
        "metadata": _METADATA,
    }


def archive_config(names: Names) -> Json:
    """Return the configuration of the archive's object store, as NATS clients create it."""
    return {
        "name": names.archive_stream,
        "subjects": [f"$O.{names.archive_bucket}.{part}.>" for part in ("C", "M")],
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "metadata": _METADATA,
    }


def wanted_streams(names: Names, settings: Settings, *, has_all: bool = False) -> list[Json]:
    """Return the configurations of streams, buckets and archive; `has_all`: unused streams too.

    External workers and webhooks have streams of their own.
    """
    streams = [stream for stream in SERVER_STREAMS if has_all or settings.bridged_queues or stream is not Stream.MQ]
    configs = [stream_config(stream, names, settings) for stream in streams]
    configs += [bucket_config(bucket, names) for bucket in Bucket]
    configs += [archive_config(names), commits_config(names)]
    if has_all or settings.triggers.webhooks:
        configs.append(webhook_config(names, settings.archive.input_bytes))
    if settings.triggers.subjects:
        configs.append(captured_config(names, settings.triggers))
    return configs


def consumer_config(spec: DurableSpec, names: Names) -> Json:
    """Return the configuration of a durable."""
    return {
        "durable_name": spec.name,
        "ack_policy": "explicit",
        "ack_wait": int(spec.ack_wait * _SECOND),
        "max_deliver": -1,  # its stage decides about every message
        "max_ack_pending": spec.max_ack_pending,
        "filter_subjects": [names.to_wire(relative) for relative in spec.filters],
    }


def durable_specs(stages: Iterable[DurableSpec], settings: Settings) -> list[DurableSpec]:
    """Return the durables of the stages and of MQ executors."""
    if not settings.bridged_queues:
        return [*stages]
    ack_wait = settings.worker.ack_wait
    teams = (
        DurableSpec(subjects.mq_executors(team), Stream.MQ, (f"mq.team.{team}", f"mq.team.{team}.>"), ack_wait)
        for team in settings.mq_teams
    )
    return [*stages, DurableSpec(subjects.JOB_EXECUTORS, Stream.MQ, ("mq.scheduled.>",), ack_wait), *teams]


def all_streams(names: Names) -> tuple[str, ...]:
    """Return the names of all streams, buckets and archive included."""
    buckets = map(names.bucket_stream, Bucket)
    others = names.archive_stream, names.webhook_stream, names.captured_stream, names.commits_stream
    return (*map(names.stream, SERVER_STREAMS), *buckets, *others)


def layout_of(config: Json) -> int | None:
    """Return the layout in a stream's configuration; None: it has no number."""
    number: str = (config.get("metadata") or {}).get(LAYOUT_KEY, "")
    return int(number) if number.isdecimal() else None


async def require_layout(connection: Connection, names: Names, streams: Iterable[str] | None = None) -> None:
    """Check the layout of streams.

    By default, check the stream of commits, because every user may read its state; an earlier layout has no such stream, and then every stream is
    checked. Streams that do not exist, or that this user may not read, are skipped.

    Raises:
        UnsupportedLayout: a stream has another layout than this version needs; the text lists the steps.
    """
    if streams is None:
        streams = () if await _require(connection, names, names.commits_stream) else all_streams(names)
    await asyncio.gather(*(_require(connection, names, stream) for stream in streams))


async def _require(connection: Connection, names: Names, stream: str) -> bool:
    """Check the layout of a stream; return whether this user sees it."""
    with suppress(NotAllowed):
        info = await connection.find(f"STREAM.INFO.{stream}", absent=wire.STREAM_NOT_FOUND, by_leader=False)
        if info is None:
            return False
        if (layout := layout_of(info["config"])) != LAYOUT:
            raise UnsupportedLayout(stream, layout, streams=all_streams(names))
    return True
