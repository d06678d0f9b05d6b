"""Installations under chaos: on one server or on three, with or without generated accounts."""

import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from tests.security.installations import ACCOUNT, PASSWORD
from tests.system.clustered import PATIENCE
from tests.system.processes import QUICK, Site
from tests.system.running import settings
from tocsin import bootstrap
from tocsin.adapters.nats.admin.accounts import password_variable, server_accounts
from tocsin.adapters.nats.server.cluster import SIZES, EmbeddedCluster, Node, RunningCluster
from tocsin.adapters.nats.server.embedded import ANY_PORT, HOST, EmbeddedServer, running
from tocsin.adapters.nats.server.process import installed_binary
from tocsin.bootstrap.nats_roles import permissions

SERVERS: Final = (1, SIZES[0])
"""The numbers of servers on which chaos runs."""
PROGRAM: Final = "shop"
AGENT: Final = "mail"
CHOSEN: Final[Mapping[str, Any]] = {
    "root": "tocsin",
    "public_prefix": "cron",
    "trigger_prefix": "cron.trigger",
    "mq_prefix": "mq",
    "metrics": {"enabled": False},
    "programs": [PROGRAM],
    "agents": {"accounts": [AGENT]},
}
"""The names of the only installation on its servers, and the outsiders with accounts of their own."""
_WITH_ACCOUNTS_CONF: Final = """#!/bin/sh
set -eu
folder=$(dirname "$2")
cp {accounts} "$folder/accounts.conf"
printf 'include "%s"\\ninclude "accounts.conf"\\n' "$(basename "$2")" >"$folder/with-accounts.conf"
export {passwords}
exec {server} -c "$folder/with-accounts.conf"
"""


class SingleServer(RunningCluster):
    """One server in the place of a cluster: it is complete when it is healthy."""

    @property
    @override
    def is_complete(self) -> bool:
        return all(node.is_healthy for node in self.nodes)


class SiteOfUsers(Site):
    """A site whose processes may each be a user of their own."""

    def log_in(self, user: str) -> None:
        """Have what is started from here on be a user, if the servers have accounts."""
        if self.settings.nats.user is not None:
            self.environment.update({f"TOCSIN_NATS__{name}".upper(): value for name, value in _login(user).items()})


@asynccontextmanager
async def installed(
    folder: Path, servers: int, *, accounts: bool, screened: bool = False
) -> AsyncIterator[tuple[SiteOfUsers, RunningCluster]]:
    """Run the servers of an installation that has no processes yet; with accounts, the site is an operator."""
    chosen = {**QUICK, **CHOSEN, "replicas": servers, "screener": {"enabled": screened}}
    binary = _server_with_accounts(folder, chosen) if accounts else None
    async with running(lambda: _start(folder / "nats", servers, binary)) as cluster:

        def connected(user: str) -> AbstractAsyncContextManager[bootstrap.Installation]:
            login = _login(user) if accounts else {}
            return bootstrap.connect(settings(cluster.url, folder, **chosen, nats={"url": cluster.url, **login}))

        async with connected("admin") as admin:
            await bootstrap.initialize(admin)
        async with connected("operator") as operator:
            tocsin = SiteOfUsers(operator, folder)
            tocsin.patience = PATIENCE
            try:
                yield tocsin, cluster
            finally:
                tocsin.end()


def _login(user: str) -> dict[str, str]:
    return {"user": user, "password": PASSWORD, "inbox_prefix": f"_INBOX_{user}"}


def _start(folder: Path, servers: int, binary: Path | None) -> RunningCluster:
    if servers > 1:
        return EmbeddedCluster(folder, size=servers, port=ANY_PORT, binary=binary).start()
    options = EmbeddedServer(folder, port=ANY_PORT, binary=binary, extra_config={"http": f"{HOST}:-1"})
    server = SingleServer(options.ready_within)
    server.nodes.append(Node("node-1", options, options.start()))
    return server


def _server_with_accounts(folder: Path, chosen: Mapping[str, Any]) -> Path:
    """Write a program that starts nats-server with the accounts beside its own configuration."""
    roles = permissions(settings("nats://unused", folder, **chosen))
    accounts, program = folder / "accounts.conf", folder / "nats-server-with-accounts"
    folder.mkdir(parents=True, exist_ok=True)
    accounts.write_text(server_accounts(ACCOUNT, roles))
    passwords = " ".join(f"{password_variable(ACCOUNT, role)}={PASSWORD}" for role in roles)
    quoted = {"accounts": accounts.resolve(), "server": installed_binary()}
    program.write_text(
        _WITH_ACCOUNTS_CONF.format(
            passwords=passwords, **{name: shlex.quote(str(path)) for name, path in quoted.items()}
        )
    )
    program.chmod(0o755)
    return program
