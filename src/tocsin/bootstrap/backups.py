"""Backups of the installation that the settings name."""

import json
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final

from .. import __version__
from ..adapters.nats.admin.desired_state import wanted_streams
from ..adapters.nats.backup.creation import BackupOrigin, BackupWriter
from ..adapters.nats.backup.folder import BackupManifest
from ..adapters.nats.backup.restoration import BackupReader, RestoreTarget
from ..settings import Settings, shown
from .installation import Installation, archive_store
from .provision import durables_of, initialize, input_limits, output_limits

_OF_THE_PLACE: Final = frozenset({"nats", "database", "redis", "data_dir", "replicas", "server", "metrics", "otel"})
"""Settings that say where an installation runs, and not what it does."""


async def create_backup(installation: Installation, folder: Path) -> BackupManifest:
    """Write a backup of a running installation to a new folder.

    Raises:
        BackupError: the folder exists, or a stream could not be read.
        ArchiveDamaged: an object of the archive is missing or changed.
    """
    writer = BackupWriter(installation.connection, installation.names, installation.archive)
    origin = BackupOrigin(__version__, await installation.identity(), settings_digest(installation.settings))
    return await writer.create(folder, origin, installation.clock.now())


async def restore_backup(installation: Installation, folder: Path) -> BackupManifest:
    """Restore a backup into a NATS that has no stream of the installation.

    Raises:
        BackupError: the backup cannot be restored there.
        ProvisionError: the server lacks a feature, or refuses a durable.
    """
    settings = installation.settings
    configs = wanted_streams(
        installation.names,
        bridge=True,
        inputs=input_limits(settings, has_webhooks=True),
        output=output_limits(settings),
    )
    target = RestoreTarget(
        configs={config["name"]: {"num_replicas": settings.replicas or 1} | config for config in configs},
        archive=archive_store(settings, installation.connection),
        durables=frozenset((installation.names.stream(spec.stream), spec.name) for spec in durables_of(settings)),
        initialize=partial(initialize, installation),
    )
    reader = BackupReader(installation.connection, installation.names, installation.projections)
    return await reader.restore(folder, target)


def settings_digest(settings: Settings) -> str:
    """Return a digest of the settings, without secrets and without those of the place."""
    kept = {path: value for path, value in shown(settings).items() if path.split(".")[0] not in _OF_THE_PLACE}
    return sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
