"""The network of requests, which connects to addresses that it checked.

A name is resolved once. Its addresses are checked, and the connection is made to one of these, so that a name whose addresses
change cannot lead elsewhere. Certificates are still those of the name.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, TypeAlias

import httpcore
from typing_extensions import override

from ..builtin_call import BuiltinFailure

NOT_ALLOWED: Final = "http_not_allowed"
CONNECT_TIMEOUT_S: Final = 10.0
"""Seconds until another address is tried."""
MAX_ADDRESSES: Final = 8
"""The number of addresses of a name that are tried."""

Address: TypeAlias = IPv4Address | IPv6Address
Resolve: TypeAlias = Callable[[str, int], Any]

_NOT_PUBLIC: Final = tuple(
    ip_network(text)
    for text in (
        "100.64.0.0/10",  # carrier-grade NAT; the metadata of Alibaba's cloud is 100.100.100.200
        "168.63.129.16/32",  # a public address, and the platform of Azure
        "192.0.0.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "::/96",
        "64:ff9b:1::/48",
        "2001::/23",
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
    )
)
"""Networks that are not public, beside those that `ipaddress` knows in each version of Python."""
_NAT64: Final = IPv6Network("64:ff9b::/96")


def is_allowed(address: Address, networks: Iterable[str]) -> bool:
    """Return whether requests may go to an address, public or in one of the networks."""
    inside = _inside(address)
    if inside is not None and not is_allowed(inside, networks):
        return False
    if isinstance(address, IPv6Address) and (address.ipv4_mapped or address.sixtofour) is not None:
        return True  # the address inside is reached; versions of Python differ on 6to4
    return _is_public(address) or any(address in ip_network(network) for network in networks)


def _inside(address: Address) -> IPv4Address | None:
    """Return the IPv4 address inside an IPv6 address, which packets reach; None: it has none."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


def _is_public(address: Address) -> bool:
    is_special = address.is_multicast or address.is_unspecified or (address.is_reserved and address not in _NAT64)
    return address.is_global and not is_special and not any(address in network for network in _NOT_PUBLIC)


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a name, in the order of preference."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


class GuardedNetwork(httpcore.AsyncNetworkBackend):
    """Connects to addresses that are allowed."""

    def __init__(self, networks: Iterable[str], resolve: Resolve = resolve) -> None:
        """Allow the public internet, and `networks` beside it."""
        self._networks = tuple(networks)
        self._resolve = resolve
        self._network = httpcore.AnyIOBackend()

    @override
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address of a name that answers."""
        try:
            addresses: Sequence[str] = await self._resolve(host.strip("[]"), port)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"{host} has no address: {error}") from None
        allowed = [address for address in addresses if self._allows(address)]
        if not allowed:
            message = (
                f"{host} has the address {', '.join(addresses[:MAX_ADDRESSES])}, which is not public; this worker allows "
                "networks by its setting `builtin.http.networks`"
            )
            raise BuiltinFailure(NOT_ALLOWED, message)
        problems = list[str]()
        for address in allowed[:MAX_ADDRESSES]:
            try:
                return await self._network.connect_tcp(address, port, CONNECT_TIMEOUT_S, socket_options=socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                problems.append(f"{address}: {str(error) or 'no answer'}")
        raise httpcore.ConnectError("; ".join(problems))

    def _allows(self, address: str) -> bool:
        try:
            return is_allowed(ip_address(address), self._networks)
        except ValueError:
            return False
