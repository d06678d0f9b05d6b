"""Open listening sockets, or explain why that fails."""

import errno
import socket
from typing import Final

from ...domain.errors import TocsinError

LOOPBACK: Final = "127.0.0.1"


class PortInUseError(TocsinError):
    """The address is in use, or may not be used."""

    code = "port-in-use"


def listen(host: str, port: int, *, setting: str = "server.port") -> socket.socket:
    """Return a listening socket. Port 0 chooses a free port.

    `setting` is the name of the port's setting, for the error text.

    Raises:
        PortInUseError: the address cannot be used.
    """
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(512)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            variable = f"TOCSIN_{setting.replace('.', '__').upper()}"
            reason = f"port {port} on {host} is in use: stop the program that listens there, or change `{setting}` ({variable})"
        else:
            reason = f"cannot listen on {host}:{port}: {error.strerror or error}"
        raise PortInUseError(reason) from error
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
