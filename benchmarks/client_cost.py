"""client: CPU of the client for each message that a stage pulls, decodes and acknowledges.

An edge that stores nothing reads stored requests, through FastStream and the engine as every edge does, once with the fast client
and once with the fetch of nats-py (`nats.fast_client: off`). Each message is checked, decoded, decided on with
"done", and acknowledged. nats-py alone, which fetches and acknowledges the same messages without decoding them, is beside both.
Only this process counts, from the first to the last of the messages, which were stored before.
"""

import asyncio
import time
from types import SimpleNamespace
from typing import Any, Final

from faststream.nats import NatsBroker
from nats.js.api import ConsumerConfig

from benchmarks.bare import bare_rate
from benchmarks.conditions import Conditions
from benchmarks.metrics import Metrics, labelled
from benchmarks.servers import initialized, servers
from tocsin import subjects
from tocsin.adapters.nats.admin.provision import provision
from tocsin.adapters.nats.client.connection import FastClient
from tocsin.adapters.nats.consumers.stage_router import BATCH, stage_router
from tocsin.bootstrap import Installation
from tocsin.domain.events import Trigger
from tocsin.engine.asked import Asked
from tocsin.engine.edge import EdgeDecisions
from tocsin.engine.stage import BoundStage, BoundSubscription
from tocsin.engine.step import DONE, Sources, Step
from tocsin.ports import DurableSpec, Publish
from tocsin.subjects import Stream

MESSAGES: Final = 20_000
WITHIN: Final = 300.0
"""Seconds for the messages to pass; only a stuck client takes longer."""
CLIENTS: Final[dict[str, FastClient]] = {"fast client": "auto", "public fetch": "off"}
MICROSECONDS: Final = 1e6
_SCOPE: Final = ("trigger.>",)


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
        for written in await installation.log.write([_request(number) for number in numbers]):
            if written.error is not None:
                raise written.error


def _request(number: int) -> Publish:
    subject = subjects.trigger(f"client-{number % 100}")
    return Publish(subject, Trigger(input={"number": number}), f"client-{number}")


async def _alone(installation: Installation, messages: int) -> float:
    """Return the CPU of nats-py's fetch and acknowledgement, in microseconds for each message."""
    names, taken = installation.names, 0
    pull = await installation.connection.client.jetstream().pull_subscribe(
        names.to_wire(_SCOPE[0]),
        durable="client-alone",
        stream=names.stream(Stream.REQUESTS),
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
    spec = DurableSpec(f"client-{name}", Stream.REQUESTS, _SCOPE)
    await provision(installation.connection, installation.names, installation.settings, durables=(spec,))
    taken, all_taken = 0, asyncio.Event()

    def answer(asked: Asked) -> "asyncio.Future[Step]":
        nonlocal taken
        taken += 1
        if taken == messages:
            all_taken.set()
        asked.step = DONE
        asked.settle()
        return asked.stored

    subscription = BoundSubscription(spec.name, spec.stream, spec.filters, lambda *_: DONE)
    stage = BoundStage(spec.name, (subscription,))

    async def catch_up() -> None: ...

    view: Any = SimpleNamespace(loop=SimpleNamespace(ask=answer, writer=SimpleNamespace(catch_up=catch_up)))
    policy = EdgeDecisions(view, Sources(installation.log, installation.projections, installation.clock))
    broker = NatsBroker(installation.settings.nats.url, logger=None, apply_types=False)
    broker.include_router(stage_router(stage, policy, installation.names, fast_client=client))
    async with broker:
        began = time.process_time()
        await broker.start()
        async with asyncio.timeout(WITHIN):
            await all_taken.wait()
        return (time.process_time() - began) * MICROSECONDS / messages
