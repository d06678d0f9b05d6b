"""Clients of servers without TLS."""

import ssl
from typing import Final

NO_AUTHORITIES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""A context for `verify` of a client whose URLs are all plain. The usual context reads a file for 20 ms in each client."""
