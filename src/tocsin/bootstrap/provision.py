"""What an installation needs in NATS."""

from collections.abc import Iterable

from ..adapters.nats.admin.desired_state import durable_specs
from ..adapters.nats.admin.provision import Change, provision
from ..engine.stage import Stage
from ..ports import DurableSpec
from ..settings import Settings
from .installation import Installation
from .queues import bridged_queues, own_queues
from .stages import STAGES, compose


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


def _durables(stages: Iterable[Stage]) -> tuple[DurableSpec, ...]:
    return tuple(
        DurableSpec(s.durable, s.stream, s.filters, ack_wait=s.ack_wait)
        for stage in stages
        for s in stage.subscriptions
    )
