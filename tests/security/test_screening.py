"""Users outside whose messages pass the screener: their headers command nothing, and nothing accepted is lost."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import nats
import nats.errors
import nats.js.errors
import pytest
from nats.aio.client import Client
from nats.js.api import PubAck
from nats.js.errors import APIError

from tests.security import installations
from tests.security.installations import ACCOUNT, PASSWORD, accounts, connected, initialize, installed
from tests.security.server import Server, server
from tests.security.test_outside_accounts import ASKED, HEADERS, attack, everything, victim
from tests.security.test_outside_hostile import BODIES, IDS, JOBS, published, send
from tests.security.test_outside_requests import deciding
from tests.system.running import DEADLINE, Running
from tocsin import bootstrap
from tocsin.adapters.nats.admin.accounts import server_accounts
from tocsin.adapters.nats.admin.permissions import Permissions
from tocsin.bootstrap.nats_roles import permissions
from tocsin.domain.events import PoisonMessage, Requested, Trigger
from tocsin.settings import Settings
from tocsin.subjects import MAX_INPUT_SIZE

STORING: Final = ("public", "public-shop", "worker", "worker-mail", "mq-executor")
EXPECTATION: Final = {"Nats-Expected-Stream": "NONE"}
"""A header at which JetStream refuses a message, and the screener does not."""
STUCK: Final = "tests.security.stuck_screener"
"""A program."""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with installed(tmp_path_factory.mktemp("screened"), screened=True) as running:
        yield running


@asynccontextmanager
async def screening(at: Server, folder: Path) -> AsyncIterator[None]:
    """Run a screener within the block, as its own user."""
    async with connected(at, folder, "screener") as installation:
        stage = asyncio.create_task(bootstrap.run_stages(installation, ["screener"]))
        try:
            await heard(at, *STORING)
            yield
        finally:
            stage.cancel()
            await asyncio.gather(stage, return_exceptions=True)


async def heard(at: Server, *users: str) -> None:
    """Wait until a screener hears users."""
    async with connected(at, at.folder, "viewer") as viewer:
        inspection = bootstrap.health_target(viewer).inspection
        async with asyncio.timeout(DEADLINE):
            while await inspection.unheard(users):  # noqa: ASYNC110 - another process subscribes
                await asyncio.sleep(0.05)


@asynccontextmanager
async def program(at: Server, user: str) -> AsyncIterator[Client]:
    """Connect as a user outside, with a plain client."""
    client = await nats.connect(at.url, user=user, password=PASSWORD, inbox_prefix=f"_INBOX_{user}")
    try:
        yield client
    finally:
        await client.close()


def rules(*, screened: bool) -> dict[str, Permissions]:
    chosen = {"programs": ["shop"], "agents": {"accounts": ["mail"]}, "queues": {"q": {"transport": "mq"}}}
    return permissions(Settings.model_validate({**chosen, "screener": {"enabled": screened}}))


def test_users_outside_keep_their_subjects() -> None:
    before, after = rules(screened=False), rules(screened=True)
    assert after.keys() - before.keys() == {"screener"}
    for role in STORING:
        assert after[role].as_server_config() == before[role].as_server_config()


def test_only_screeners_hear_what_is_not_screened() -> None:
    hearing = {role for role, rule in rules(screened=True).items() if "tocsin.unscreened.*.>" in rule.subscribe}
    assert hearing == {"screener", "scheduler"}
    assert "_R_.>" in rules(screened=True)["screener"].publish


@pytest.mark.parametrize("screened", [False, True])
def test_no_account_imports_a_stored_subject_if_screened(screened: bool) -> None:  # noqa: FBT001 - a parameter
    config = server_accounts("TOCSIN", rules(screened=screened))
    services = re.findall(r'service: \{ account: TOCSIN, subject: "([^"]+)"', config)
    stored = [subject for subject in services if subject.startswith(("tocsin.0.", "tocsin.outside.", "mq."))]
    assert bool(stored) is not screened
    assert len([subject for subject in services if subject.startswith("tocsin.unscreened.")]) == (13 if screened else 0)


async def test_any_client_publishes_as_before(secured: Server, tmp_path: Path) -> None:
    async with screening(secured, tmp_path), program(secured, "public-shop") as shop:
        stream = shop.jetstream()
        headers = {"Nats-Msg-Id": "order-1", **EXPECTATION}
        first = await stream.publish("cron.trigger.any", b"{}", headers=headers)
        again = await stream.publish("cron.trigger.any", b"{}", headers=headers)
        assert (first.stream, again.seq, again.duplicate) == ("TOCSIN_INPUTS", first.seq, True)
        with pytest.raises(APIError, match="message size exceeds maximum allowed"):
            await stream.publish("cron.trigger.any", b"x" * (MAX_INPUT_SIZE + 1))
    async with connected(secured, tmp_path, "operator") as it:
        [stored] = await Running(it).stored("outside.shop.trigger.any", Trigger, 1)
        assert stored.message_id == "order-1"


async def test_message_is_refused_without_a_screener(secured: Server) -> None:
    async with program(secured, "public-shop") as shop:
        with pytest.raises(nats.errors.NoRespondersError):
            await shop.request("cron.trigger.any", b"{}", timeout=DEADLINE)


@pytest.mark.parametrize("role", STORING)
async def test_no_header_and_no_reply_has_an_effect(role: str, secured: Server, tmp_path: Path) -> None:
    """Every hostile header and reply subject, on all that the role may publish."""
    async with victim(secured, tmp_path) as tocsin, screening(secured, tmp_path):
        before = await everything(tocsin.installation, role)
        for headers in HEADERS:
            await attack(secured, tmp_path, role, headers)
        assert await everything(tocsin.installation, role) == before
        async with program(secured, role) as outside:
            subject = next(subject for subject in ASKED[role] if not subject.startswith("$"))
            answer = json.loads((await outside.request(subject, b"{}", headers=EXPECTATION, timeout=DEADLINE)).data)
            assert answer["seq"]


async def test_hostile_messages_stop_no_screener(secured: Server, tmp_path: Path) -> None:
    async with connected(secured, tmp_path, "operator") as it, deciding(secured, tmp_path):
        await heard(secured, *STORING)
        tocsin = Running(it)
        for message_id in IDS:
            await send(secured, published(b"cron.trigger.j", b"{}", message_id))
        for body in BODIES:
            await send(secured, published(b"cron.trigger.j", body))
        for job in JOBS:
            await send(secured, published(b"cron.trigger.%s" % job, b"{}"))
            await send(secured, published(b"cron.cancel.%s.%s" % (job, job), b"{}"))
        await tocsin.apply({"name": "meant", "function": "f"})
        await send(secured, published(b"cron.trigger.meant", b"{}", b"meant"))
        await tocsin.ended("meant", Requested)

        async def is_over() -> bool:
            return not (await tocsin.not_taken()).total()

        await tocsin.until(is_over)
        assert await tocsin.facts("dead-letter.>", PoisonMessage)


async def test_copied_request_is_not_stored(secured: Server, tmp_path: Path) -> None:
    """A reader of the streams addresses the server's reply to a subject that the screener hears."""
    async with (
        connected(secured, tmp_path, "operator") as it,
        connected(secured, tmp_path, "viewer") as viewer,
        screening(secured, tmp_path),
        program(secured, "public-shop") as shop,
    ):
        stream, tocsin = shop.jetstream(), Running(it)
        await stream.publish("cron.trigger.copied", b"{}")
        [stored] = await tocsin.stored("outside.shop.trigger.copied", Trigger, 1)
        read = json.dumps({"seq": stored.sequence}).encode()
        get, client = "$JS.API.DIRECT.GET.TOCSIN_INPUTS", viewer.connection.client
        await client.publish(get, read, reply="tocsin.unscreened.public-shop.outside.shop.trigger.copied")
        await client.request(get, read, timeout=DEADLINE)  # the first reply was sent before
        await stream.publish("cron.trigger.copied", b'{"n":2}')
        assert len(await tocsin.stored("outside.shop.trigger.copied", Trigger, 2)) == 2


async def test_killed_screener_repeats_no_execution(secured: Server, tmp_path: Path) -> None:
    """A process is killed after a trigger is stored, and before its publisher hears of it."""
    headers = {"Nats-Msg-Id": "once"}
    async with connected(secured, tmp_path, "operator") as it, program(secured, "public-shop") as shop:
        tocsin, stream = Running(it), shop.jetstream()
        await tocsin.apply({"name": "once", "function": "f"})
        stuck = subprocess.Popen([sys.executable, "-m", STUCK, secured.url, str(tmp_path)])  # noqa: ASYNC220 - it is quick
        try:
            await heard(secured, "public-shop")
            await shop.publish("cron.trigger.once", b"{}", headers=headers, reply=shop.new_inbox())
            await tocsin.stored("outside.shop.trigger.once", Trigger, 1)
        finally:
            stuck.kill()
            stuck.wait()
        async with deciding(secured, tmp_path):
            await heard(secured, "public-shop")
            answer = await stream.publish("cron.trigger.once", b"{}", headers=headers)
            assert answer.duplicate
            await stream.publish("cron.trigger.once", b"{}", headers={"Nats-Msg-Id": "after"})
            await tocsin.ended("once", Requested, 2)
        assert len(await tocsin.facts("outside.shop.trigger.once", Trigger)) == 2
        assert len(await tocsin.of_executions("once", Requested)) == 2


async def test_switch_keeps_what_was_accepted(tmp_path: Path) -> None:
    """A program stays connected while the servers get accounts that lead to the screener, and those that do not."""
    screened, environment = accounts(tmp_path, screened=True)
    before, after = installations.rules(tmp_path), installations.rules(tmp_path, screened=True)
    direct = server_accounts(ACCOUNT, {**after, **{role: before[role] for role in STORING}})
    with server(tmp_path / "server", screened, environment=environment) as running:
        at = replace(running, is_screened=True)
        await initialize(at.url, tmp_path)
        async with connected(at, tmp_path, "operator") as it, program(at, "public-shop") as shop:
            await Running(it).apply({"name": "job", "function": "f"})
            async with screening(at, tmp_path):
                for number, config in enumerate((direct, screened, direct)):
                    at.reload(config)
                    await heard(at, *STORING)
                    await stored_once(shop, f"order-{number}")
                    assert (await stored_once(shop, "order-0")).duplicate
                at.reload(direct)
            async with connected(running, tmp_path, "scheduler") as scheduler:
                stages = asyncio.create_task(bootstrap.run_stages(scheduler, bootstrap.STAGE_NAMES))
                await Running(it).ended("job", Requested, 3)
                stages.cancel()
                await asyncio.gather(stages, return_exceptions=True)
            assert len(await Running(it).of_executions("job", Requested)) == 3


async def stored_once(client: Client, message_id: str) -> PubAck:
    """Publish a trigger until it is accepted, as a program does."""
    async with asyncio.timeout(DEADLINE):
        while True:
            try:
                return await client.jetstream().publish("cron.trigger.job", b"{}", headers={"Nats-Msg-Id": message_id})
            except (nats.errors.Error, nats.js.errors.Error):
                await asyncio.sleep(0.1)
