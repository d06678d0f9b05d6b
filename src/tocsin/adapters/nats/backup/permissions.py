"""Permissions of the users that make and restore backups."""

from dataclasses import replace

from ....subjects import LOG_ARCHIVE, SERVER_STREAMS, Bucket
from ..admin.permissions import API, Permissions
from ..client.names import Names
from .creation import snapshot_order


def backing_up(rules: Permissions, names: Names) -> Permissions:
    """Add the right to take snapshots of streams, which changes nothing in them.

    `rules`: those of a reader of the archive.
    """
    order = snapshot_order(names)
    publish = {
        *rules.publish,
        *(f"{API}.STREAM.{verb}.{stream}" for verb in ("INFO", "SNAPSHOT") for stream in order),
        *(f"$JS.SNAPSHOT.ACK.{stream}.>" for stream in order),
        *(f"{API}.CONSUMER.LIST.{names.stream(stream)}" for stream in SERVER_STREAMS),
    }
    return replace(rules, publish=tuple(sorted(publish)))


def restoring(rules: Permissions, provisioning: Permissions, names: Names) -> Permissions:
    """Add the right to create streams from snapshots, with any content, and to end the log.

    `rules`: those of a reader of the log and the archive. `provisioning`: those of the user that runs `tocsin init`.
    """
    order = snapshot_order(names)
    publish = {
        *rules.publish,
        *provisioning.publish,
        *(f"{API}.STREAM.RESTORE.{stream}" for stream in order),
        *(f"$JS.SNAPSHOT.RESTORE.{stream}.*" for stream in order),
        f"$O.{names.archive_bucket}.>",
        names.key(Bucket.CURSORS, LOG_ARCHIVE),
        f"{API}.STREAM.INFO.{names.commits_stream}",
        f"{names.commits_prefix}.*",
    }
    return replace(rules, publish=tuple(sorted(publish)), deny_publish=())
