"""Backups of the installation that the settings name."""

import json
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from .. import __version__
from ..adapters.nats.admin.desired_state import wanted_streams
from ..adapters.nats.backup.creation import BackupWriter
from ..adapters.nats.backup.errors import BackupPlaceInvalid, BackupUnwritable
from ..adapters.nats.backup.folder import BackupManifest
from ..adapters.nats.backup.object_bucket import OBJECT_SCHEME, ObjectBucket
from ..adapters.nats.backup.restoration import BackupReader, RestoreTarget
from ..adapters.nats.backup.store import BackupStore, download_backup, uploading, with_unnamed
from ..adapters.nats.backup.verification import Verification, verify_backup
from ..adapters.s3.bucket import Bucket
from ..engine.snapshots import Snapshots
from ..ports import Clock
from ..services.audit.check import PATIENCE
from ..services.repair import LogEnd
from ..settings import Settings, shown
from ..settings.s3 import S3_SCHEME, S3Location, s3_location
from .commit_process import Commits
from .commits import takes
from .installation import FOLDER_SCHEME, Installation, archive_store, connect_client
from .provision import durables_of, initialize
from .stage_runner import rebuild_history, recorded_by

CONNECT_S: Final = 10.0
"""Seconds in which the NATS of a backup must answer."""
_OF_THE_PLACE: Final = frozenset(
    {"nats", "database", "redis", "data_dir", "replicas", "server", "metrics", "otel", "backup"}
)
"""Settings that say where an installation runs, and not what it does."""
_STORE_OF_THE_ARCHIVE: Final = "archive.s3."
_OBJECT_PLACE: Final = re.compile(
    r"([A-Za-z0-9_-]+)/([A-Za-z0-9_-][A-Za-z0-9._-]*(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*)/?"
)


class ObjectLocation(NamedTuple):
    """A place in an object store of NATS."""

    bucket: str
    prefix: str


BackupPlace: TypeAlias = Path | S3Location | ObjectLocation
"""Where a backup is: a folder, a place in S3, or a place in an object store of NATS."""


def backup_place(text: str) -> BackupPlace:
    """Read the place of a backup."""
    if text.startswith(S3_SCHEME):
        try:
            location = s3_location(text)
        except ValueError as error:
            raise BackupPlaceInvalid(f"{text}: it {error}") from None
        if not location.prefix:
            raise BackupPlaceInvalid(f"{text}: name a place in the bucket, such as {text.rstrip('/')}/2026-11-26")
        return location
    if text.startswith(OBJECT_SCHEME):
        if (found := _OBJECT_PLACE.fullmatch(text.removeprefix(OBJECT_SCHEME))) is None:
            raise BackupPlaceInvalid(
                f"{text}: it must be `{OBJECT_SCHEME}BUCKET/NAME`, of letters, digits, `-` and `_`, and `.` in names"
            )
        return ObjectLocation(found[1], found[2])
    if "://" in text and not text.startswith(f"{FOLDER_SCHEME}/"):
        raise BackupPlaceInvalid(
            f"{text}: a backup goes to a folder, to `{S3_SCHEME}BUCKET/NAME`, or to `{OBJECT_SCHEME}BUCKET/NAME`"
        )
    return Path(text.removeprefix(FOLDER_SCHEME))


async def create_backup(installation: Installation, place: BackupPlace) -> BackupManifest:
    """Write a backup of a running installation to a new place.

    A place outside gets its files from a temporary folder (`TMPDIR`).
    """
    writer = BackupWriter(installation.connection, installation.names, installation.commits.archive)
    identity, settings = await installation.identity(), settings_digest(installation.settings)
    now = installation.clock.now()
    create = partial(writer.create, now=now, version=__version__, installation=identity, settings=settings)
    if isinstance(place, Path):
        return await create(place)
    async with _store(installation.settings, place) as store, uploading(store, now) as upload:
        with _temporary_folder() as folder:
            manifest = await create(folder / "backup")
            await upload.finish(folder / "backup", manifest)
    return manifest


async def verify_backup_at(settings: Settings, place: BackupPlace, *, patience: timedelta = PATIENCE) -> Verification:
    """Read a whole backup: compare its files with the manifest, and audit its log."""
    async with _local(settings, place) as (folder, store):
        verification = await verify_backup(folder, patience=patience, takes=takes)
        return verification if store is None else await with_unnamed(store, verification)


async def restore_backup(installation: Installation, place: BackupPlace) -> BackupManifest:
    """Restore a backup into a NATS that has no stream of the installation."""
    async with _local(installation.settings, place) as (folder, _):
        return await _restore_folder(installation, folder)


@asynccontextmanager
async def _local(settings: Settings, place: BackupPlace) -> AsyncIterator[tuple[Path, BackupStore | None]]:
    """Yield a folder with a backup, and the store outside that had it."""
    if isinstance(place, Path):
        yield place, None
        return
    async with _store(settings, place) as store:
        with _temporary_folder() as folder:
            await download_backup(store, folder)
            yield folder, store


async def _restore_folder(installation: Installation, folder: Path) -> BackupManifest:
    settings = installation.settings
    configs = wanted_streams(installation.names, settings, has_all=True)
    target = RestoreTarget(
        configs={config["name"]: {"num_replicas": settings.replicas or 1} | config for config in configs},
        archive=archive_store(settings, installation.connection),
        durables=frozenset((installation.names.stream(spec.stream), spec.name) for spec in durables_of(settings)),
        initialize=partial(initialize, installation),
        end_log=partial(_end_log, installation.commits, installation.clock),
    )
    reader = BackupReader(installation.connection, installation.names, installation.projections)
    return await reader.restore(folder, target)


async def _end_log(commits: Commits, clock: Clock, key: bytes) -> None:
    end = commits.end(key, clock)
    await end.restore(await end.find())


class LostTail(NamedTuple):
    """The end of a log, and a number above it that an event was given.

    0: no event was lost.
    """

    number: int
    known: int


async def find_lost_tail(installation: Installation) -> LostTail:
    """Compare the end of the log with the records of the history and the snapshots."""
    end = await _end_of(installation)
    number = (await end.find()).number
    snapshots = Snapshots(installation.projections, await installation.report_key())
    known = max(await snapshots.newest(), await _recorded(installation))
    return LostTail(number, known if known > number else 0)


async def end_lost_tail(installation: Installation, lost: LostTail) -> int:
    """Have numbers begin above the lost numbers; return the last that is left out.

    The history is recorded again if it is beyond.
    """
    end = await _end_of(installation)
    restoration = await end.restore(await end.find(), at_least=lost.known)
    if await _recorded(installation) > restoration.from_:
        await rebuild_history(installation)
    return restoration.to


async def _end_of(installation: Installation) -> LogEnd:
    return installation.commits.end(await installation.report_key(), installation.clock)


async def _recorded(installation: Installation) -> int:
    async with installation.history() as history:
        return await recorded_by(history)


def settings_digest(settings: Settings) -> str:
    """Return a digest of the settings, without secrets and settings of the place."""
    kept = {
        path: value
        for path, value in shown(settings).items()
        if path.split(".")[0] not in _OF_THE_PLACE and not path.startswith(_STORE_OF_THE_ARCHIVE)
    }
    return sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


@asynccontextmanager
async def _store(settings: Settings, place: S3Location | ObjectLocation) -> AsyncIterator[BackupStore]:
    if isinstance(place, S3Location):
        yield Bucket(place, settings.backup.s3, part="A backup in S3")
        return
    if place.bucket.startswith(f"{settings.root}_"):
        raise BackupPlaceInvalid(f"{place.bucket} is an object store of the installation: name another bucket")
    there = settings.model_copy(update={"nats": settings.backup.nats or settings.nats})
    async with connect_client(there, within=CONNECT_S) as connection:
        yield ObjectBucket(connection, place.bucket, place.prefix)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Make a folder that only this user may read, and remove it at the end."""
    try:
        with tempfile.TemporaryDirectory(prefix="tocsin-backup-") as folder:
            yield Path(folder)
    except OSError as error:
        if isinstance(error, TimeoutError):
            raise
        reason = (error.strerror or str(error)).lower()
        raise BackupUnwritable(
            f"{tempfile.gettempdir()}: {reason}. A backup outside needs room for all its files there: set TMPDIR to another folder."
        ) from error
