"""Messages that programs outside publish for triggers, captured with exactly the rights that the settings give."""

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from tests.security.installations import PASSWORD, connected, installed
from tests.security.server import Server
from tests.security.test_outside_accounts import HEADERS
from tests.system.running import DEADLINE, Running
from tocsin import bootstrap
from tocsin.adapters.nats.event_streams import NatsEventStreams
from tocsin.bootstrap import Installation
from tocsin.domain.events import Admitted
from tocsin.ports import EventDurable, NotAllowed

STREAM = "TOCSIN_EVENTS"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with installed(tmp_path_factory.mktemp("captured")) as running:
        yield running


async def of_program(at: Server, user: str, refusals: "asyncio.Queue[str] | None" = None) -> Client:
    async def note(error: Exception) -> None:
        if refusals is not None:
            refusals.put_nowait(str(error))

    return await nats.connect(at.url, user=user, password=PASSWORD, inbox_prefix=f"_INBOX_{user}", error_cb=note)


async def captured(shop: Installation) -> list[bytes]:
    """Return the bodies of the captured messages that are kept."""
    state = (await shop.connection.manage(f"STREAM.INFO.{STREAM}"))["state"]
    bodies: list[bytes] = []
    for sequence in range(state["first_seq"], state["last_seq"] + 1):
        request = json.dumps({"seq": sequence}).encode()
        message: dict[str, Any] = await shop.connection.manage(f"STREAM.MSG.GET.{STREAM}", request)
        bodies.append(base64.b64decode(message["message"].get("data", "")))
    return bodies


async def test_program_starts_a_job_by_a_plain_message(secured: Server, tmp_path: Path) -> None:
    async with (
        connected(secured, tmp_path, "scheduler") as scheduler,
        connected(secured, tmp_path, "operator") as operator,
    ):
        ready = asyncio.Event()
        stages = asyncio.create_task(bootstrap.run_stages(scheduler, ["event_listener", "planner"], ready=ready))
        await ready.wait()
        tocsin = Running(operator)
        await tocsin.apply(
            {"name": "read", "function": "f", "triggers": [{"nats": "sensor.*.read", "input": {"at": "subject"}}]}
        )
        streams = NatsEventStreams(scheduler.connection, scheduler.names)

        async def has_durable() -> bool:
            return bool(await streams.names(STREAM))

        await tocsin.until(has_durable)
        program = await of_program(secured, "public-shop")
        await program.publish("sensor.eu.read", b"{}")
        await program.flush()
        [admitted] = await tocsin.ended("read", Admitted)
        assert admitted.plan.input == {"at": "sensor.eu.read"}
        await program.close()
        stages.cancel()
        await asyncio.gather(stages, return_exceptions=True)


async def test_program_publishes_on_its_subjects_only(secured: Server) -> None:
    refusals = asyncio.Queue[str]()
    for user, subject in (
        ("public-shop", "sensor.eu.fault"),
        ("public-billing", "sensor.eu.read"),
        ("public", "sensor.a.read"),
    ):
        program = await of_program(secured, user, refusals)
        await program.publish(subject, b"{}")
        async with asyncio.timeout(DEADLINE):
            assert "permissions violation" in (await refusals.get()).lower()
        await program.close()


@pytest.mark.parametrize("headers", HEADERS, ids=json.dumps)
async def test_no_header_touches_messages_of_others(secured: Server, tmp_path: Path, headers: dict[str, str]) -> None:
    async with connected(secured, tmp_path, "shop") as shop:
        program = await of_program(secured, "public-shop")
        await program.publish("sensor.b.read", b'"before"')
        await program.flush()
        before = await stored(shop, b'"before"')
        await program.publish("sensor.a.read", b'"hostile"', headers=headers)
        await program.publish("sensor.b.read", b'"after"')
        await program.flush()
        after = await stored(shop, b'"after"')
        assert after[: len(before)] == before
        await program.close()


async def stored(shop: Installation, last: bytes) -> list[bytes]:
    """Wait until the last captured message has a body; return the bodies of all."""

    async def are_stored() -> list[bytes]:
        bodies = await captured(shop)
        return bodies if bodies[-1:] == [last] else []

    return await Running(shop).until(are_stored)


async def test_message_id_swallows_no_later_message(secured: Server, tmp_path: Path) -> None:
    async with connected(secured, tmp_path, "shop") as shop:
        program = await of_program(secured, "public-shop")
        await program.publish("sensor.a.read", b'"hostile"', headers={"Nats-Msg-Id": "order-17"})
        await program.flush()
        await stored(shop, b'"hostile"')
        await asyncio.sleep(0.2)  # the server remembers ids for half of this time
        await program.publish("sensor.b.read", b'"order"', headers={"Nats-Msg-Id": "order-17"})
        await program.flush()
        await stored(shop, b'"order"')
        await program.close()


async def test_requests_get_no_answer_of_the_stream(secured: Server, tmp_path: Path) -> None:
    async with connected(secured, tmp_path, "shop") as shop:
        program = await of_program(secured, "public-shop")
        inbox = await program.subscribe(reply := program.new_inbox())
        await program.publish("sensor.a.read", b'"question"', reply=reply)
        await program.flush()
        await stored(shop, b'"question"')
        await program.flush()
        with pytest.raises(nats.errors.TimeoutError):
            await inbox.next_msg(timeout=0.2)
        await program.close()


async def test_listener_reads_captured_subjects_only(secured: Server, tmp_path: Path) -> None:
    async with connected(secured, tmp_path, "event-listener") as installation:
        streams = NatsEventStreams(installation.connection, installation.names)
        await streams.create(EventDurable("captured", STREAM, ("sensor.>",)))
        with pytest.raises(NotAllowed):
            await streams.create(EventDurable("other", STREAM, (">",)))
        await streams.remove(STREAM, "captured")
