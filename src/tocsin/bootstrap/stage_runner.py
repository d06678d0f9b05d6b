"""Stages at work."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress

import structlog
from faststream.nats import NatsBroker

from ..adapters.nats.client.connection import CLOSING_ERRORS, RECONNECT_FOREVER
from ..adapters.nats.client.credentials import security_of
from ..adapters.nats.consumers.greedy_batches import PriorityGate
from ..adapters.nats.consumers.stage_router import stage_router
from ..archive.cursors import Cursors
from ..engine.delivery_policy import DeliveryPolicy
from . import archive
from .installation import Installation, report_key, servers
from .stages import compose, compose_on

_log = structlog.get_logger("tocsin")


async def run_stages(installation: Installation, names: Sequence[str], *, ready: asyncio.Event | None = None) -> None:
    """Run stages until cancelled; then what they are handling is finished, and the lease given back.

    Raises:
        Unreachable: the installation was never initialized.
    """
    settings = installation.settings
    stages = compose(installation, names, key=await report_key(installation))
    running = [*names]
    async with AsyncExitStack() as stack:
        stack.callback(_log.info, "stages have stopped", action="stages-stopped", stages=running)
        if {"recorder", "archiver"} & set(names):
            history = await stack.enter_async_context(installation.history())
            stages += await compose_on(history, installation, names)
        broker = NatsBroker(
            servers(settings),
            logger=None,
            apply_types=False,
            **RECONNECT_FOREVER,
            **security_of(settings.nats).broker,
        )
        cursors = Cursors(installation.projections, installation.clock, late=archive.late(settings))
        outcomes = DeliveryPolicy(installation.log, is_behind=cursors.is_behind)
        finish_within = settings.worker.shutdown_timeout
        precedence = PriorityGate()
        for stage in stages:
            router = stage_router(
                stage,
                outcomes,
                installation.names,
                finish_within=finish_within,
                inbox_prefix=settings.nats.inbox_prefix,
                precedence=precedence,
            )
            broker.include_router(router)
        stack.push_async_callback(_stop, broker)
        await broker.start()
        _heed_cancellation()
        _log.info("stages are running", action="stages-started", stages=running)
        if ready is not None:
            ready.set()
        async with asyncio.TaskGroup() as group:
            for stage in stages:
                for loop in stage.loops:
                    group.create_task(loop(), name=stage.name)
            group.create_task(_until_cancelled(running), name="until cancelled")


def _heed_cancellation() -> None:
    """End, if that was asked for while the client connected: it swallows a cancellation that comes at the wrong moment."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _until_cancelled(stages: Sequence[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        _log.info("stages are stopping", action="stages-stopping", stages=stages)


async def _stop(broker: NatsBroker) -> None:
    with suppress(*CLOSING_ERRORS):
        await broker.stop()
