"""Addresses of callers."""

import ipaddress
from urllib.parse import unquote


def address_of(peer: str) -> str:
    """Return the address in a peer such as `ipv4:127.0.0.1:5` or `ipv6:%5B::1%5D:5`."""
    host = unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return "unknown"
