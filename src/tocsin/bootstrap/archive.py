"""The archiver, as the settings configure it."""

from datetime import timedelta
from typing import Final

from ..adapters.nats.admin.purge import NatsStreamPurge
from ..adapters.nats.client.connection import Connection
from ..adapters.nats.client.names import Names
from ..adapters.nats.log.stored_log import NatsStoredLog
from ..archive.archive import Archive, Origin
from ..engine.leader_election import LeaderElection
from ..engine.stage import Stage
from ..ports import Clock, History
from ..settings import Settings
from ..stages.archiver.archive_eligibility import ArchiveEligibility, Keeping
from ..stages.archiver.purge import PacedPurge
from ..stages.archiver.stage import Archiver, archiver
from ..stages.recorder import RECORDED

LEAST: Final = timedelta(minutes=2)
"""What is younger than this, or than the hot window, never leaves the streams, however many messages they hold."""


def late(settings: Settings) -> timedelta:
    """How old a message must be for what it led to to be archived: half of what stays in the streams for certain."""
    return min(timedelta(seconds=settings.archive.hot_window), LEAST) / 2


def stage(
    settings: Settings,
    connection: Connection,
    names: Names,
    archive_: Archive,
    history: History,
    leadership: LeaderElection,
    clock: Clock,
    origin: Origin,
) -> Stage:
    """The archiver of an installation."""
    hot_window = timedelta(seconds=settings.archive.hot_window)
    keeping = Keeping(
        hot_window=hot_window,
        least=min(hot_window, LEAST),
        max_messages=settings.archive.max_messages,
        history=timedelta(days=settings.execution.history_retention_days),
        interval=settings.archive.interval,
    )
    housekeeping = NatsStreamPurge(connection, names)
    streams = NatsStoredLog(connection, names)
    ripeness = ArchiveEligibility(streams, housekeeping, history, keeping=keeping, recorded=RECORDED)
    removing = PacedPurge(streams, housekeeping, archive_, clock)
    it = Archiver(ripeness, removing, archive_, history, leadership, clock, origin=origin, keeping=keeping)
    return archiver(it, leadership)
