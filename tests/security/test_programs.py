"""Programs outside with accounts of their own: each has its identity, its answers, its keys and its replies."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from tests.security.installations import PASSWORD, connected, installed
from tests.security.server import Server
from tests.security.test_outside_requests import deciding
from tests.system.running import DEADLINE, Running
from tocsin.domain.events import Actor, Admitted, Cancelled, Planned, Trigger
from tocsin.services.operations.audit_records import asked_by, audit_trail

ADMIN = b'{"by": {"identity": "admin", "kind": "user"}}'


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with installed(tmp_path_factory.mktemp("programs")) as running:
        yield running


@asynccontextmanager
async def program(at: Server, name: str) -> AsyncIterator[Client]:
    """Connect as a program, with a plain client."""
    client = await nats.connect(at.url, user=name, password=PASSWORD, inbox_prefix=f"_INBOX_{name}")
    try:
        yield client
    finally:
        await client.close()


def actor(name: str) -> Actor:
    return Actor(identity=name, kind="program", source="nats")


async def test_requests_have_the_name_of_their_account(secured: Server, tmp_path: Path) -> None:
    async with (
        connected(secured, tmp_path, "operator") as it,
        program(secured, "public-shop") as shop,
        program(secured, "public-billing") as billing,
        deciding(secured, tmp_path),
    ):
        tocsin = Running(it)
        await tocsin.apply({"name": "named.job", "function": "f"})
        await shop.request("cron.trigger.named.job", ADMIN, timeout=DEADLINE)
        [begun] = await tocsin.ended("named.job", Admitted)
        await billing.request(f"cron.cancel.named.job.{begun.execution_id}", ADMIN, timeout=DEADLINE)
        [end] = await tocsin.ended("named.job", Cancelled)
        assert (begun.by, end.by) == (actor("shop"), actor("billing"))
        trail = [fact.message for fact in await audit_trail(it.log, "named.job")]
        assert [asked_by(fact) for fact in trail if isinstance(fact, Trigger | Cancelled)] == [begun.by, end.by]


async def test_programs_share_no_keys_and_no_answers(secured: Server, tmp_path: Path) -> None:
    body, headers = b'{"idempotency_key": "order-17"}', {"Nats-Msg-Id": "shop-17"}
    async with (
        connected(secured, tmp_path, "operator") as it,
        program(secured, "public-shop") as shop,
        program(secured, "public-billing") as billing,
        deciding(secured, tmp_path),
    ):
        tocsin = Running(it)
        await tocsin.apply({"name": "locked", "function": "f", "overlap_policy": "enqueue"})
        await tocsin.trigger("locked")
        await tocsin.ended("locked", Admitted)  # it holds the lock
        heard = {client: await client.subscribe("cron.answer.>") for client in (shop, billing)}
        await shop.request("cron.trigger.locked", body, timeout=DEADLINE, headers=headers)
        stored = json.loads((await billing.request("cron.trigger.locked", body, timeout=DEADLINE)).data)
        for client, name, token in ((shop, "shop", "shop-17"), (billing, "billing", f"seq-{stored['seq']}")):
            answer = await heard[client].next_msg(timeout=DEADLINE)
            assert answer.subject == f"cron.answer.locked.{token}"
            assert json.loads(answer.data)["data"]["trigger_id"] == f"{name}.{token}"
            with pytest.raises(nats.errors.TimeoutError):
                await heard[client].next_msg(timeout=0.2)
        planned = await tocsin.ended("locked", Planned, 2)
        assert {event.by for event in planned} == {actor("shop"), actor("billing")}


async def test_reply_of_a_program_reaches_its_account_only(secured: Server) -> None:
    """Users of one account trust each other: a reply can look like an event there."""
    forged = "cron.triggered.forged"
    async with (
        program(secured, "public-shop") as shop,
        program(secured, "public-shop") as colleague,
        program(secured, "public-billing") as billing,
    ):
        heard = {client: await client.subscribe(forged) for client in (colleague, billing)}
        await asyncio.gather(*(client.flush() for client in heard))
        await shop.publish("cron.trigger.nothing", b"{}", reply=forged)
        assert (await heard[colleague].next_msg(timeout=DEADLINE)).subject == forged
        with pytest.raises(nats.errors.TimeoutError):
            await heard[billing].next_msg(timeout=0.2)


async def test_message_ids_of_programs_are_shared(secured: Server) -> None:
    async with program(secured, "public-shop") as shop, program(secured, "public-billing") as billing:
        for client, is_duplicate in ((shop, False), (billing, True)):
            headers = {"Nats-Msg-Id": "guessed"}
            reply = await client.request("cron.trigger.any", b"{}", timeout=DEADLINE, headers=headers)
            assert json.loads(reply.data).get("duplicate", False) is is_duplicate
