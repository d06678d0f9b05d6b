"""What an installation needs on the server, as JetStream's own configuration (JSON, times in nanoseconds).

Only what we depend on is named here. Everything else (placement, compression) stays as an operator set it.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from .... import subjects
from ....ports import DurableSpec
from ....subjects import Bucket, Stream
from ..client.connection import Json
from ..client.names import Names

_SECOND: Final = 1_000_000_000
DUPLICATE_WINDOW: Final = 120
"""Seconds in which a second message of the same id is not stored."""
MARKER_TTL: Final = 60
"""Seconds that the mark of an expired key is kept."""
MAX_WAITING: Final = 2_048
"""Requests for messages that may be open at a durable: one for each of its readers."""


def stream_config(stream: Stream, names: Names) -> Json:
    """A main stream: neither age nor size nor number ends anything in it, since that would lose timers and work.

    A stream that holds schedules cannot refuse what is new when it is full (`discard: new`), only forget what is old. So
    a limit that an operator sets on one is taken off again; the archiver is what bounds it.

    The bridge's stream is a work queue: a task that an executor outside has taken is no longer needed, for the log has it,
    and neither is a completion, once the bridge has made a report of it. Until then nothing removes either. A work
    queue also refuses a second reader of the same subjects, so that no executor outside can take completions.
    """
    config: Json = {
        "name": names.stream(stream),
        "subjects": names.captured(stream),
        "storage": "file",
        "retention": "workqueue" if stream is Stream.MQ else "limits",
        "max_age": 0,
        "max_bytes": -1,
        "max_msgs": -1,
        "max_msgs_per_subject": -1,
        "duplicate_window": DUPLICATE_WINDOW * _SECOND,
        "allow_direct": True,
    }
    if stream is not Stream.MQ:
        config |= {"allow_msg_schedules": True, "allow_msg_ttl": True}
    if stream is Stream.LOG:
        source, destination = names.republished()
        config["republish"] = {"src": source, "dest": destination}
    return config


def bucket_config(bucket: Bucket, names: Names) -> Json:
    """The stream behind a KV bucket that keeps one value a key, and lets each value have a life time."""
    return {
        "name": names.bucket_stream(bucket),
        "subjects": [names.key(bucket, ">")],
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "max_msgs_per_subject": 1,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
        "allow_msg_ttl": True,
        "subject_delete_marker_ttl": MARKER_TTL * _SECOND,
    }


def archive_config(names: Names) -> Json:
    """The stream behind the object store of the archive, as NATS' own clients make one."""
    return {
        "name": names.archive_stream,
        "subjects": [f"$O.{names.archive_bucket}.{part}.>" for part in ("C", "M")],
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "allow_rollup_hdrs": True,
        "allow_direct": True,
    }


def consumer_config(spec: DurableSpec, names: Names) -> Json:
    """A durable that never gives up on a message by itself: what becomes of it is for its stage to say."""
    return {
        "durable_name": spec.name,
        "ack_policy": "explicit",
        "ack_wait": int(spec.ack_wait * _SECOND),
        "max_deliver": -1,
        "max_ack_pending": spec.max_ack_pending,
        "filter_subjects": [wire for relative in spec.filters for wire in names.filters(relative)],
    }


def durable_specs(
    queues: Iterable[str], stages: Iterable[DurableSpec], *, bridge: bool, task_ack_wait: float
) -> list[DurableSpec]:
    """The durables of the stages, and those of the executors: ours on the log, those outside on the bridge's stream."""
    executors = [
        DurableSpec(subjects.executor_durable(queue), Stream.LOG, (subjects.tasks(queue),), starts_after_cursor=False)
        for queue in queues  # a task that waited for its first executor for long is still to be done
    ]
    if bridge:
        executors.append(DurableSpec(subjects.JOB_EXECUTORS, Stream.MQ, ("mq.scheduled.>",)))
    return [*stages, *(replace(spec, ack_wait=task_ack_wait) for spec in executors)]
