"""What an installation needs in NATS."""

from collections.abc import Iterable
from functools import partial
from typing import Final

from ..adapters.nats.admin.desired_state import durable_specs
from ..adapters.nats.admin.inspection import NatsInspection
from ..adapters.nats.admin.provision import Change, provision
from ..engine.stage import Stage
from ..ports import DurableSpec
from ..services.health import HealthTarget
from ..settings import Settings
from ..stages.recorder import RECORDED
from ..subjects import Stream
from .installation import Installation, is_set_up
from .queues import bridged_queues, own_queues
from .stages import STAGES, compose

KEY_TIMEOUT_S: Final = 3.0
"""How long `tocsin doctor` waits for the installation's key."""


async def initialize(installation: Installation) -> list[Change]:
    """Create or update the streams, buckets and durables, and say what changed (`tocsin init`).

    Raises:
        ProvisionError: the server is not what is needed, or something of somebody else is in the way.
    """
    settings = installation.settings
    return await provision(
        installation.connection,
        installation.names,
        replicas=settings.replicas,
        queues=own_queues(settings),
        bridge=bool(bridged_queues(settings)),
        task_ack_wait=settings.worker.ack_wait,
        durables=_durables(compose(installation, STAGES, key=b"")),
    )


def durables_of(settings: Settings, stages: Iterable[Stage]) -> list[DurableSpec]:
    """Every durable of an installation: those of `stages`, and those of the executors."""
    return durable_specs(
        own_queues(settings),
        _durables(stages),
        bridge=bool(bridged_queues(settings)),
        task_ack_wait=settings.worker.ack_wait,
    )


def health_target(installation: Installation) -> HealthTarget:
    """Return what `services.health` examines of an installation."""
    settings = installation.settings
    stages = compose(installation, STAGES, key=b"")
    durables = durables_of(settings, stages)
    return HealthTarget(
        root=installation.names.root,
        settings=settings,
        log=installation.log,
        projections=installation.projections,
        clock=installation.clock,
        inspection=NatsInspection(
            installation.connection, installation.names, bridge=bool(bridged_queues(settings)), durables=durables
        ),
        open_history=installation.history,
        has_key=partial(is_set_up, installation, within=KEY_TIMEOUT_S),
        queues=own_queues(settings),
        durables=durables,
        owners={(s.stream, s.durable): stage.name for stage in stages for s in stage.subscriptions},
        recorded=RECORDED[Stream.LOG],
    )


def _durables(stages: Iterable[Stage]) -> tuple[DurableSpec, ...]:
    return tuple(
        DurableSpec(s.durable, s.stream, s.filters, ack_wait=s.ack_wait)
        for stage in stages
        for s in stage.subscriptions
    )
