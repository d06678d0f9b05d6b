"""A server of an installation, and a leaf node whose users enter one of its accounts."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from tests.ports import free_port
from tests.security.installations import ACCOUNT, PASSWORD, accounts, initialize
from tests.security.server import Server, server

LEAF: Final = """
leafnodes {{ remotes: [ {{ url: "nats://leaf:{password}@127.0.0.1:{port}", account: OUTSIDE }} ] }}
accounts {{ OUTSIDE {{ users: [ {{ user: {user}, password: {password} }} ] }} }}
"""
"""The owner of the leaf node gives its users no rules."""


class Servers(NamedTuple):
    """The server of the installation, and a leaf node."""

    hub: Server
    leaf: Server


@contextmanager
def hub_and_leaf(folder: Path, *, user: str, account: str, screened: bool = False) -> Iterator[Servers]:
    """Run both servers; `user` of the leaf node enters `account`, such as `PUBLIC_SHOP`."""
    config, environment = accounts(folder, screened=screened)
    port = free_port()
    leaf_user = f'{{ user: leaf, password: "{PASSWORD}", account: {ACCOUNT}_{account} }}'
    listens = f"leafnodes {{ listen: 127.0.0.1:{port}, authorization {{ users: [ {leaf_user} ] }} }}\n"
    with server(folder / "hub", listens + config, environment=environment) as hub:
        asyncio.run(initialize(hub.url, folder))
        with server(folder / "leaf", LEAF.format(password=PASSWORD, port=port, user=user)) as leaf:
            yield Servers(replace(hub, is_screened=screened), leaf)
