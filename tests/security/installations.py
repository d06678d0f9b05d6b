"""An installation with a NATS user for each part, and connections as each of them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

from nats.aio.msg import Msg
from nats.errors import Error

from tests.security.server import DEADLINE, Server, server
from tests.system.running import registrar
from tocsin import bootstrap
from tocsin.adapters.nats.admin.accounts import password_variable, server_accounts
from tocsin.adapters.nats.admin.permissions import Permissions
from tocsin.adapters.nats.agents import NatsAgentChannel
from tocsin.archive.signing_keys import SigningKey
from tocsin.bootstrap import Installation
from tocsin.bootstrap.nats_roles import permissions
from tocsin.ports import HandOver
from tocsin.settings import Settings

ACCOUNT = "TOCSIN"
PASSWORD = "pass-word"  # noqa: S105 - of a server that lives for one test


ASKING = {"operator", "api"}
"""The roles whose decisions the registrar stores, which runs beside them."""
QUEUES = {"outside": {"transport": "mq"}, "teams": {"transport": "matched"}}
PROGRAMS = ["shop", "billing"]
AGENTS = ["mail", "billing"]
NAMESPACES: dict[str, object] = {}
NOT_RESERVED = {"other", "mailer"}
"""Names of agents that have no account of their own."""

TRIGGERS = {
    "streams": {"SHOP": ["shop.orders.>"]},
    "webhooks": {"GITHUB_SECRET": ["/hooks/github"]},
    "kv": {"flags": ["checkout.>"]},
    "subjects": ["sensor.>"],
    "senders": {"shop": ["sensor.*.read"]},
}
SHOP = Permissions(
    "_INBOX_shop",
    (
        "$JS.API.STREAM.CREATE.*",
        "shop.>",
        "$KV.flags.>",
        "$JS.API.STREAM.*.TOCSIN_EVENTS",
        "$JS.API.STREAM.MSG.GET.TOCSIN_EVENTS",
    ),
)
"""A program in the account of the streams, with a stream that the settings open. It also looks at what is captured."""
NOTIFICATIONS = {"channels": {"ops": {"type": "nats"}}, "group_window": 0.1}


def settings(url: str, folder: Path, role: str, *, screened: bool = False) -> Settings:
    nats = {"url": url, "user": role, "password": PASSWORD, "inbox_prefix": f"_INBOX_{role}"}
    key = folder / "notary.pem"
    if not key.exists():
        key.write_text(SigningKey.generate().as_pem())
    return Settings.model_validate(
        {
            "data_dir": folder,
            "nats": nats,
            "leader": {"ttl": 5, "renew_interval": 1},
            "notary": {"key": key, "interval": 0.2},
            "queues": QUEUES,
            "programs": PROGRAMS,
            "namespaces": NAMESPACES,
            "agents": {"accounts": AGENTS},
            "notifications": NOTIFICATIONS,
            "triggers": TRIGGERS,
            "screener": {"enabled": screened},
        }
    )


def accounts(folder: Path, *, screened: bool = False) -> tuple[str, dict[str, str]]:
    """Return the accounts of an installation, and the environment with their passwords."""
    roles = rules(folder, screened=screened)
    return server_accounts(ACCOUNT, roles), {password_variable(ACCOUNT, role): PASSWORD for role in roles}


def rules(folder: Path, *, screened: bool = False) -> dict[str, Permissions]:
    """Return the rules of every user of an installation."""
    signed = {"key": folder / "notary.pem"}
    outside = {
        "queues": QUEUES,
        "programs": PROGRAMS,
        "namespaces": NAMESPACES,
        "agents": {"accounts": AGENTS},
        "server": {"over_nats": True},
        "notifications": NOTIFICATIONS,
        "triggers": TRIGGERS,
        "screener": {"enabled": screened},
    }
    return permissions(Settings.model_validate({"data_dir": folder, "notary": signed, **outside})) | {"shop": SHOP}


@contextmanager
def installed(folder: Path, *, screened: bool = False) -> Iterator[Server]:
    """Run a server with the accounts of an installation that `tocsin init` made."""
    config, environment = accounts(folder, screened=screened)
    with server(folder, config, environment=environment) as running:
        asyncio.run(initialize(running.url, folder))
        yield replace(running, is_screened=screened)


async def initialize(url: str, folder: Path) -> None:
    """Make the streams and buckets, as `admin`."""
    async with bootstrap.connect(settings(url, folder, "admin")) as installation:
        await bootstrap.initialize(installation)
        assert all(change.action == "unchanged" for change in await bootstrap.initialize(installation))


@asynccontextmanager
async def connected(at: Server, folder: Path, role: str) -> AsyncIterator[Installation]:
    """Connect as a user; beside one that decides nothing by itself, the registrar runs."""
    async with user(at, folder, role) as installation:
        if role not in ASKING:
            yield installation
            return
        async with user(at, folder, "registrar") as stage, registrar(stage):
            yield installation


def user(at: Server, folder: Path, role: str) -> AbstractAsyncContextManager[Installation]:
    return bootstrap.connect(settings(at.url, folder, role, screened=at.is_screened))


async def reached_names(stage: Installation, outside: Installation) -> tuple[set[str], set[str]]:
    """Return the names of agents under which a user can send hold lists, and those whose messages the user can hear.

    The user subscribes to every subject, in general and in particular, and the matcher sends every agent all that it sends to agents.
    """
    held, heard = set[str](), set[str]()
    channel, client = NatsAgentChannel(stage.connection, stage.names), outside.connection.client
    forger, agent_id = NatsAgentChannel(outside.connection, outside.names), "01890f3e-0000-7000-8000-000000000001"
    names = sorted({*AGENTS, *NOT_RESERVED})

    async def note(message: Msg) -> None:
        if message.data.startswith(b"for "):
            heard.add(message.data.decode().removeprefix("for "))

    for subject in (">", "tocsin.>", "tocsin.task.>", "*.*.*.*", *(f"tocsin.task.{name}.>" for name in names)):
        with contextlib.suppress(Error):  # a user with rules may be refused
            await client.subscribe(subject, cb=note)
    async with channel.hold_lists(lambda name, *_: held.add(name)), forger.tasks("*", "*", lambda _: None):
        await client.flush()
        await stage.connection.client.flush()
        async with asyncio.timeout(DEADLINE):
            for _ in range(5):  # a new listener may not count yet in the other account, or behind the leaf node
                while not (held >= NOT_RESERVED and heard >= NOT_RESERVED):
                    await _send_everything(channel, forger, names, agent_id)
                await _send_everything(channel, forger, names, agent_id)
    return held, heard


async def _send_everything(stage: NatsAgentChannel, agent: NatsAgentChannel, names: list[str], agent_id: str) -> None:
    for name in names:
        body = f"for {name}".encode()
        await agent.announce(name, agent_id, b"{}")
        await stage.hand_over([HandOver(name, agent_id, 1, body)])
        await stage.send_ends(name, agent_id, body)
        await stage.command(name, agent_id, body)
    await stage.call_roll()
    await asyncio.sleep(0.05)
