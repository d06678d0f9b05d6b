"""Programs outside that are bound to a namespace: the server refuses what they send and hear of others."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import nats
import pytest
from nats.aio.client import Client

from tests.security import installations
from tests.security.installations import ACCOUNT, PASSWORD, connected, initialize
from tests.security.server import Server, server
from tests.security.test_outside_requests import deciding
from tests.system.running import DEADLINE, Running
from tocsin.adapters.nats.admin.accounts import password_variable, server_accounts
from tocsin.bootstrap.nats_roles import permissions
from tocsin.domain.events import Actor, Admitted, Cancelled
from tocsin.settings import Settings

NAMESPACES: Final = {"payments": {"programs": ["shop"], "announced": ["payments.nightly"]}}
SILENCE_S: Final = 0.3


@pytest.fixture(scope="module", params=[False, True], ids=["direct", "screened"])
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("namespaces")
    known = installations.settings("nats://unused", folder, "admin", screened=request.param)
    bound = Settings.model_validate({**known.model_dump(exclude_unset=True), "namespaces": NAMESPACES})
    roles = permissions(bound)
    environment = {password_variable(ACCOUNT, role): PASSWORD for role in roles}
    with server(folder, server_accounts(ACCOUNT, roles), environment=environment) as running:
        asyncio.run(initialize(running.url, folder))
        yield replace(running, is_screened=request.param)


@asynccontextmanager
async def program(at: Server, name: str) -> AsyncIterator[tuple[Client, list[str]]]:
    """Connect as a program; yield its client, and the errors that the server sends."""
    errors: list[str] = []

    async def note(error: Exception) -> None:
        errors.append(str(error).lower())

    client = await nats.connect(
        at.url, user=name, password=PASSWORD, inbox_prefix=f"_INBOX_{name}", error_cb=note, allow_reconnect=False
    )
    try:
        yield client, errors
    finally:
        await client.close()


async def request(client: Client, subject: str) -> None:
    """Publish a request; wait until a screener runs, if the installation has one."""
    async with asyncio.timeout(DEADLINE):
        while True:
            try:
                await client.request(subject, b"{}", timeout=DEADLINE)
            except nats.errors.NoRespondersError:
                await asyncio.sleep(0.05)
            else:
                return


async def test_bound_program_triggers_and_cancels_its_jobs(secured: Server, tmp_path: Path) -> None:
    async with (
        connected(secured, tmp_path, "operator") as it,
        program(secured, "public-shop") as (shop, _),
        deciding(secured, tmp_path),
    ):
        tocsin = Running(it)
        await tocsin.apply({"name": "payments.called", "function": "f"})
        answers = await shop.subscribe("cron.answer.>")
        await request(shop, "cron.trigger.payments.called")
        [begun] = await tocsin.ended("payments.called", Admitted)
        assert begun.by == Actor(identity="shop", kind="program", source="nats")
        await request(shop, "cron.trigger.payments.called")
        assert (await answers.next_msg(timeout=DEADLINE)).subject.startswith("cron.answer.payments_called.")
        await request(shop, f"cron.cancel.payments.called.{begun.execution_id}")
        await tocsin.ended("payments.called", Cancelled)


async def test_bound_program_hears_events_of_announced_jobs(secured: Server, tmp_path: Path) -> None:
    every = {"schedule": "@every 1s", "function": "f"}
    forbidden = [
        *("cron.triggered.>", "cron.triggered.*", "cron.triggered.billing_job", "cron.triggered.payments_hidden"),
        *("cron.>", ">", "tocsin.>", "cron.skipped.*"),
    ]
    async with (
        connected(secured, tmp_path, "operator") as it,
        program(secured, "public-shop") as (shop, errors),
        program(secured, "public-billing") as (billing, _),
        deciding(secured, tmp_path),
    ):
        own = {event: await shop.subscribe(f"cron.{event}.payments_nightly") for event in ("triggered", "skipped")}
        of_others = [await shop.subscribe(subject) for subject in forbidden]
        others = await billing.subscribe("cron.triggered.billing_job")
        await asyncio.gather(shop.flush(), billing.flush())
        await Running(it).apply({"name": "payments.nightly", **every}, {"name": "billing.job", **every})
        for event, subscription in own.items():
            heard = json.loads((await subscription.next_msg(timeout=DEADLINE)).data)
            assert (heard["event"], heard["data"]["cron_name"]) == (f"cron.{event}", "payments.nightly")
        await others.next_msg(timeout=DEADLINE)
        for subscription in of_others:
            with pytest.raises(nats.errors.TimeoutError):
                await subscription.next_msg(timeout=SILENCE_S)
        assert sum("permissions violation" in error for error in errors) == len(forbidden)


@pytest.mark.parametrize(
    "subject",
    [
        "cron.trigger.billing.job",
        "cron.trigger.billing_job",
        "cron.trigger.other",
        "cron.trigger.payments",
        "cron.trigger.payments_x",
        "cron.cancel.billing.job.11111111-1111-7111-8111-111111111111",
        "tocsin.outside.shop.trigger.billing.job",
        "tocsin.outside.billing.trigger.billing.job",
    ],
)
async def test_request_on_another_namespace_is_refused(secured: Server, tmp_path: Path, subject: str) -> None:
    async with connected(secured, tmp_path, "operator") as it, program(secured, "public-shop") as (shop, errors):
        await Running(it).apply({"name": "billing.job", "function": "f"}, {"name": "other", "function": "f"})
        before = await it.log.read("outside.>")
        with pytest.raises((nats.errors.TimeoutError, nats.errors.NoRespondersError)):
            await shop.request(subject, b"{}", timeout=SILENCE_S)
        assert any("permissions violation" in error for error in errors)
        assert await it.log.read("outside.>") == before


async def test_execution_of_another_job_cannot_be_cancelled(secured: Server, tmp_path: Path) -> None:
    """The subject names a job of the namespace, and the execution is of another."""
    async with (
        connected(secured, tmp_path, "operator") as it,
        program(secured, "public-shop") as (shop, _),
        deciding(secured, tmp_path),
    ):
        tocsin = Running(it)
        await tocsin.apply({"name": "billing.long", "function": "f"}, {"name": "payments.other", "function": "f"})
        await tocsin.trigger("billing.long")
        [begun] = await tocsin.ended("billing.long", Admitted)
        await tocsin.trigger("payments.other")
        [own] = await tocsin.ended("payments.other", Admitted)
        for execution_id in (begun.execution_id, own.execution_id):  # the stage handles them in this order
            await request(shop, f"cron.cancel.payments.other.{execution_id}")
        await tocsin.ended("payments.other", Cancelled)
        assert await it.log.read(f"execution.billing_long.{begun.execution_id}.cancelled") == []


@pytest.mark.parametrize(
    "namespaces",
    [
        {"payments": {"programs": ["unknown"]}},
        {"payments": {"announced": ["billing.job"]}},
        {"payments": {"announced": ["payments"]}},
        {"Payments": {}},
    ],
)
def test_wrong_namespaces_in_settings_are_refused(namespaces: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="amespaces"):
        Settings.model_validate({"programs": ["shop"], "namespaces": namespaces})
