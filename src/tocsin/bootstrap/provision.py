"""The streams, buckets and durables that an installation needs in NATS."""

from functools import partial
from typing import Any, Final

from ..adapters.nats.admin.desired_state import durable_specs
from ..adapters.nats.admin.inspection import NatsInspection
from ..adapters.nats.admin.provision import Change, Mode, provision
from ..domain.commit import LogHead
from ..engine.fold import Fold
from ..engine.fresh_fold import load_fold
from ..engine.snapshots import Snapshots
from ..engine.stage import AnyStage, Subscription
from ..ports import DurableSpec, LogUnavailable
from ..services.health import HealthTarget
from ..settings import Settings
from ..stages import STAGES
from ..subjects import DECISION_STREAMS, RECORDED, Stream
from .commit_process import KEY, PARTITION
from .commits import LED
from .installation import Installation, is_set_up

KEY_TIMEOUT_S: Final = 3.0
"""How long `tocsin doctor` waits for the installation's key."""


async def initialize(installation: Installation, mode: Mode = Mode.APPLY) -> list[Change]:
    """Create or update the streams, buckets and durables; return the changes (`tocsin init`).

    Raises:
        MessagesAtRisk: the mode is `KEEP_MESSAGES`, and lower limits would remove stored messages; nothing is changed.
        ProvisionError: the server lacks a feature, or an object of another application is in the way.
    """
    settings, durables = installation.settings, durables_of(installation.settings)
    return await provision(installation.connection, installation.names, settings, durables=durables, mode=mode)


def installed_stages(settings: Settings) -> list[AnyStage]:
    return [stage for stage in STAGES if stage.is_installed(settings)]


def read_by_durables(stage: AnyStage) -> list[Subscription[Any]]:
    """Return the subscriptions of a stage that have a durable.

    The log of commits has positions for the others.
    """
    return [one for one in stage.subscriptions if stage.name not in LED and one.stream not in DECISION_STREAMS]


def followed_by(stage: AnyStage) -> list[Subscription[Any]]:
    """Return the subscriptions to decisions that a stage follows at the edge."""
    return [
        one
        for one in stage.subscriptions
        if one.stream in DECISION_STREAMS and (one.is_at_edge or stage.name not in LED)
    ]


def _subscriptions(settings: Settings) -> list[tuple[AnyStage, Subscription[Any]]]:
    return [(stage, one) for stage in installed_stages(settings) for one in read_by_durables(stage)]


def _followers(settings: Settings) -> dict[str, list[DurableSpec]]:
    """Return the events of the log that stages at its edge follow, by stage."""
    followed = {stage.name: followed_by(stage) for stage in installed_stages(settings)}
    return {stage: [one.spec(settings) for one in edges] for stage, edges in followed.items() if edges}


def durables_of(settings: Settings) -> list[DurableSpec]:
    """Return every durable of an installation: those of its stages and that of MQ executors."""
    return durable_specs([subscription.spec(settings) for _, subscription in _subscriptions(settings)], settings)


def health_target(installation: Installation) -> HealthTarget:
    """Return the parts of an installation that `services.health` examines."""
    settings = installation.settings
    durables = durables_of(settings)
    return HealthTarget(
        root=installation.names.root,
        settings=settings,
        log=installation.log,
        projections=installation.projections,
        clock=installation.clock,
        inspection=NatsInspection(installation.connection, installation.names, settings, durables),
        archive=installation.commits.archive,
        open_history=installation.history,
        has_key=partial(is_set_up, installation, within=KEY_TIMEOUT_S),
        durables=durables,
        owners={(s.stream, s.durable): stage.name for stage, s in _subscriptions(settings)},
        recorded=RECORDED[Stream.LOG],
        load_fold=partial(fold_of, installation),
        led=[stage.name for stage in installed_stages(settings) if stage.name in LED],
        followers=_followers(settings),
    )


async def fold_of(installation: Installation) -> Fold:
    """Return the states of all events that are stored now."""
    if not await is_set_up(installation, within=KEY_TIMEOUT_S):
        raise LogUnavailable("nothing is set up: run `tocsin init` first")
    commits, key = installation.commits, await installation.report_key()
    view, seal = await commits.view(), await commits.reader.seal()
    await view.end(Stream.LOG)
    if view.is_folding or view.chain is None:
        return view.fold
    fold, snapshots = Fold(key), Snapshots(installation.projections, key)
    loaded = await load_fold(commits.log, PARTITION, seal, LogHead(KEY), view.chain.head, fold, snapshots)
    if loaded is None:
        raise LogUnavailable("the log of commits lacks its beginning, and no snapshot replaces it")
    return loaded
