"""The stages, and what each is given."""

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from typing import Final

from .. import __version__
from ..archive.archive import Origin
from ..domain import execution
from ..domain.recovery import Policy
from ..engine.leadership_events import TICKER_SIGNS
from ..engine.stage import Stage
from ..engine.state_cache import StateCache
from ..ports import History
from ..settings import Settings
from ..stages.dag_advancer.stage import dag_advancer
from ..stages.dead_letter_sink import dead_letter_sink
from ..stages.lease_keeper import lease_keeper
from ..stages.lock_keeper.stage import lock_keeper
from ..stages.mq_bridge import mq_bridge
from ..stages.planner import planner
from ..stages.recorder import recorder
from ..stages.recoverer.stage import recoverer
from ..stages.registrar import registrar
from ..stages.retrier import retrier
from ..stages.ticker.stage import ticker
from ..subjects import ARCHIVER_LEASE, RECOVERER_LEASE, TICKER_LEASE
from . import archive as archiving
from .installation import Installation
from .leader_candidates import candidate
from .queues import bridged_queues

STAGES: Final = (
    "registrar",
    "ticker",
    "planner",
    "lock_keeper",
    "dag_advancer",
    "lease_keeper",
    "retrier",
    "dead_letter_sink",
    "recoverer",
    "recorder",
    "archiver",
    "mq_bridge",
)
"""The stages, in the order in which a job passes them."""


def compose(installation: Installation, names: Collection[str], *, key: bytes) -> list[Stage]:
    """The named stages but those that need a database. They share what each has folded; nothing else."""
    log, projections, clock = installation.log, installation.projections, installation.clock
    settings = installation.settings
    executions = StateCache(log, execution.initial, execution.evolve)
    bridged = bridged_queues(settings)
    stages = (
        registrar(log, projections),
        ticker(log, candidate(installation, TICKER_LEASE, signs=TICKER_SIGNS), clock),
        planner(log, clock, executions),
        lock_keeper(log, executions, projections, clock),
        dag_advancer(log, executions, clock, key),
        lease_keeper(log, executions, key),
        retrier(log, executions, key),
        dead_letter_sink(log),
        recoverer(
            log,
            projections,
            candidate(installation, RECOVERER_LEASE, signs=()),
            clock,
            key,
            policy=_policy(settings),
            outside=frozenset(bridged),
            interval=settings.recovery.interval,
        ),
        *((mq_bridge(log, executions, key, bridged),) if bridged else ()),
    )
    return [_patient(stage, settings.stages.ack_wait) for stage in stages if stage.name in names]


async def compose_on(history: History, installation: Installation, names: Collection[str]) -> list[Stage]:
    """The named stages of those that need a database.

    Raises:
        Unreachable: the installation was never initialized.
    """
    settings, clock = installation.settings, installation.clock
    stages = []
    if "recorder" in names:
        stages.append(recorder(installation.log, history, clock, past=installation.stored))
    if "archiver" in names and settings.archive.enabled:
        origin = Origin(installation=await installation.identity(), root=settings.root, version=__version__)
        leadership = candidate(installation, ARCHIVER_LEASE)
        connection, archive = installation.connection, installation.archive
        stages.append(
            archiving.stage(settings, connection, installation.names, archive, history, leadership, clock, origin)
        )
    return stages


def _patient(stage: Stage, ack_wait: float) -> Stage:
    return replace(stage, subscriptions=tuple(replace(s, ack_wait=ack_wait) for s in stage.subscriptions))


def _policy(settings: Settings) -> Policy:
    it = settings.recovery
    return Policy(
        threshold=timedelta(seconds=it.threshold),
        max_attempts=it.max_attempts,
        max_age=timedelta(seconds=it.max_age),
        grace=timedelta(seconds=it.grace),
    )
