"""A name whose addresses change, as the system's resolver and a server of DNS give them.

unshare -mn python -m tests.worker.builtin.rebinding FOLDER

In namespaces of its own, it has port 53 and an address of the public internet. It prints the type of each failure, or the answer.
"""

import asyncio
import fcntl
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Final, cast

from tests.worker.builtin.http_given import HttpBench, Server, answer

NAME: Final = "rebind.example.com"
PUBLIC: Final = "93.184.216.34"
LOOPBACK: Final = "127.0.0.1"
_SET_ADDRESS: Final = 0x8916
_SET_FLAGS: Final = 0x8914
_UP_AND_LOOPBACK: Final = 0x49
_ADDRESS: Final = 1
"""The type of a question for an IPv4 address."""


class Names(asyncio.DatagramProtocol):
    """A server of DNS; each answer has the next addresses."""

    def __init__(self, addresses: list[list[str]]) -> None:
        self._addresses = addresses
        self.asked = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        end = data.index(b"\0", 12) + 5
        kind = struct.unpack("!H", data[end - 4 : end - 2])[0]
        found: list[str] = []
        if kind == _ADDRESS:
            found = self._addresses[min(self.asked, len(self._addresses) - 1)]
            self.asked += 1
        head = data[:2] + struct.pack("!HHHHH", 0x8580, 1, len(found), 0, 0)
        records = [struct.pack("!HHHIH", 0xC00C, _ADDRESS, 1, 0, 4) + socket.inet_aton(each) for each in found]
        self._transport.sendto(head + data[12:end] + b"".join(records), addr)


def prepare(folder: Path) -> None:
    """Give this network the addresses, and have the resolver ask the server."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as it:
        fcntl.ioctl(it, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP_AND_LOOPBACK))
        address = struct.pack("16sHH4s8x", b"lo:1", socket.AF_INET, 0, socket.inet_aton(PUBLIC))
        fcntl.ioctl(it, _SET_ADDRESS, address)
    for target, text in {"/etc/resolv.conf": f"nameserver {LOOPBACK}\n", "/etc/nsswitch.conf": "hosts: dns\n"}.items():
        own = folder / Path(target).name
        own.write_text(text)
        subprocess.run(["mount", "--bind", str(own), target], check=True)  # noqa: S607 - in a namespace of its own


async def main() -> None:
    """Send three requests to the name."""
    public, inner = Server(), Server()
    public.port = 80
    public.response, inner.response = answer(b"public"), answer(b"inner")
    names = Names([[PUBLIC], [LOOPBACK], [LOOPBACK, PUBLIC]])
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: names, local_addr=(LOOPBACK, 53))
    await asyncio.start_server(public.serve, PUBLIC, 80)
    await asyncio.start_server(inner.serve, LOOPBACK, 80)
    for _ in range(3):
        public.is_gone.clear()
        bench = HttpBench(public)
        bench.offer(urls=[f"http://{NAME}"], networks=[])
        await bench.executor.run(await bench.give({"url": f"http://{NAME}/"}))
        report = await bench.report()
        if report.error is None:
            await public.is_gone.wait()
        sys.stdout.write(f"{report.error.type if report.error else report.result}\n")
    sys.stdout.write(f"{len(public.requests)} {len(inner.requests)} {names.asked}\n")


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
    asyncio.run(main())
