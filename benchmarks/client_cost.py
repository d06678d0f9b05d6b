"""client: CPU of the client for each message that a stage pulls, decodes and acknowledges.

A stage that stores nothing reads stored tasks, through FastStream and the engine as every stage does, once with the fast client
and once with the fetch of nats-py (`nats.fast_client: off`). Each message is checked, decoded into its event, decided on with
"done", and acknowledged. nats-py alone, which fetches and acknowledges the same messages without decoding them, is beside both.
Only this process counts, from the first to the last of the messages, which were stored before.
"""

import asyncio
import time
from datetime import datetime
from typing import Final

from faststream.nats import NatsBroker
from nats.js.api import ConsumerConfig

from benchmarks.bare import bare_rate
from benchmarks.conditions import Conditions
from benchmarks.metrics import Metrics, labelled
from benchmarks.part import FUNCTION
from benchmarks.servers import initialized, servers
from tocsin.adapters.nats.admin.provision import provision
from tocsin.adapters.nats.client.connection import FastClient
from tocsin.adapters.nats.consumers.stage_router import BATCH, stage_router
from tocsin.bootstrap import Installation
from tocsin.domain.events import Dispatched, Message, Recorded
from tocsin.engine.delivery_policy import DeliveryPolicy
from tocsin.engine.stage import BoundStage, BoundSubscription
from tocsin.engine.states import StateStore
from tocsin.engine.step import DONE, Sources, States, Step
from tocsin.ports import Append, DurableSpec
from tocsin.subjects import Stream

MESSAGES: Final = 20_000
WITHIN: Final = 300.0
"""Seconds for the messages to pass; only a stuck client takes longer."""
CLIENTS: Final[dict[str, FastClient]] = {"fast client": "auto", "public fetch": "off"}
MICROSECONDS: Final = 1e6
_SCOPE: Final = ("execution.>",)
_NOON: Final = datetime.fromisoformat("2026-01-01T12:00:00Z")


async def client_cost(conditions: Conditions, *, messages: int = MESSAGES) -> Metrics:
    """Return the microseconds of CPU for each message, by client.

    Raises:
        TimeoutError: the messages did not pass in time.
    """
    async with servers(sync_always=conditions.sync_always) as nats, initialized(nats.settings) as installation:
        bare = await bare_rate(installation.connection.client)
        await _store(installation, messages)
        alone = await _alone(installation, messages)
        found = labelled({"client_cpu_us_per_message": alone}, "nats-py alone")
        await _stage(installation, "warm", "auto", messages)  # the first use of everything costs more
        for label, client in CLIENTS.items():
            cost = await _stage(installation, label.replace(" ", "-"), client, messages)
            found |= labelled({"client_cpu_us_per_message": cost}, label)
            found |= labelled({"ratio": cost / alone}, f"{label} to nats-py alone")
        return found | {"bare_rate": bare}


async def _store(installation: Installation, messages: int) -> None:
    for first in range(0, messages, BATCH):
        numbers = range(first, min(first + BATCH, messages))
        for written in await installation.log.write([Append((_task(number),), 0) for number in numbers]):
            if written.error is not None:
                raise written.error


def _task(number: int) -> Dispatched:
    return Dispatched(
        job=f"client-{number % 100}",
        execution_id=f"client-{number}",
        step="main",
        attempt=1,
        max_attempts=1,
        function=FUNCTION,
        queue="default",
        input={"number": number},
        timeout=30,
        scheduled_time=_NOON,
        trigger="cron",
        token="benchmark",  # noqa: S106 - a made-up event
    )


async def _alone(installation: Installation, messages: int) -> float:
    """Return the CPU of nats-py's fetch and acknowledgement, in microseconds for each message."""
    names, taken = installation.names, 0
    pull = await installation.connection.client.jetstream().pull_subscribe(
        names.to_wire(_SCOPE[0]),
        durable="client-alone",
        stream=names.stream(Stream.LOG),
        config=ConsumerConfig(max_ack_pending=messages),
    )
    began = time.process_time()
    async with asyncio.timeout(WITHIN):
        while taken < messages:
            fetched = await pull.fetch(min(BATCH, messages - taken), timeout=10)
            for message in fetched:
                await message.ack()
            taken += len(fetched)
    return (time.process_time() - began) * MICROSECONDS / messages


async def _stage(installation: Installation, name: str, client: FastClient, messages: int) -> float:
    """Return the CPU of a stage that stores nothing, in microseconds for each message."""
    spec = DurableSpec(f"client-{name}", Stream.LOG, _SCOPE)
    await provision(installation.connection, installation.names, durables=(spec,))
    taken, all_taken = 0, asyncio.Event()

    def decide(_: Recorded[Message], __: States, ___: datetime) -> Step:
        nonlocal taken
        taken += 1
        if taken == messages:
            all_taken.set()
        return DONE

    stage = BoundStage(spec.name, (BoundSubscription(spec.name, spec.stream, spec.filters, decide),))
    policy = DeliveryPolicy(StateStore(Sources.of(installation.log, installation.projections, installation.clock)))
    broker = NatsBroker(installation.settings.nats.url, logger=None, apply_types=False)
    broker.include_router(stage_router(stage, policy, installation.names, marks=installation.marks, fast_client=client))
    async with broker:
        began = time.process_time()
        await broker.start()
        async with asyncio.timeout(WITHIN):
            await all_taken.wait()
        return (time.process_time() - began) * MICROSECONDS / messages
