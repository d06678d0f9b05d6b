"""Requests to servers and names that mean harm, and requests that have to end."""

import asyncio
import gzip
import os
import shutil
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import pytest

from tests.worker.builtin.http_given import LOOPBACK, HttpBench, Respond, answer
from tocsin.worker.builtin.guarded_network import is_allowed
from tocsin.worker.outcome import StopReason

ENDLESS = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"


def forever(start: bytes, chunk: bytes, pause: float = 0) -> Respond:
    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while True:
            writer.write(chunk)
            await writer.drain()
            await asyncio.sleep(pause)

    return respond


async def test_endless_body_is_cut(requests: HttpBench) -> None:
    requests.server.response = forever(ENDLESS, b"x" * 65_536)
    assert await requests.execute({}) == {"status": 200, "text": "x" * 4_096, "is_cut": True}
    await requests.server.is_gone.wait()


async def test_slow_drip_ends_with_the_timeout(requests: HttpBench) -> None:
    requests.server.response = forever(ENDLESS, b" ", 0.01)
    failure = await requests.fail({}, timeout=0.3)
    assert (failure.type, failure.retryable) == ("timed_out", True)
    await requests.server.is_gone.wait()


async def test_slow_text_does_not_hide_the_status(requests: HttpBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.worker.builtin.http_request._REASON_WITHIN_S", 0.2)
    requests.server.response = forever(b"HTTP/1.1 503 Busy\r\n\r\n", b"x", 0.01)
    assert (await requests.fail({})).type == "http_status_503"


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 "])
async def test_huge_headers_are_a_failure(start: bytes, requests: HttpBench) -> None:
    line = b"X-More: " + b"x" * 900 + b"\r\n"
    requests.server.response = forever(start, line if start.endswith(b"\n") else b"x" * 1_000)
    failure = await requests.fail({})
    assert (failure.type, failure.retryable) == ("http_connection_failed", True)
    await requests.server.is_gone.wait()


async def test_compressed_bomb_is_not_expanded(requests: HttpBench) -> None:
    bomb = gzip.compress(b" " * 20_000_000)
    requests.server.response = answer(bomb, Content_Encoding="gzip", Content_Type="application/json")
    assert await requests.execute({}) == {"status": 200, "text": "", "is_cut": True}


@pytest.mark.parametrize(
    "response", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", b"SSH-2.0-OpenSSH\r\n"]
)
async def test_broken_answer_is_retried(response: bytes, requests: HttpBench) -> None:
    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(response)
        await writer.drain()
        writer.close()

    requests.server.response = respond
    failure = await requests.fail({})
    assert (failure.type, failure.retryable) == ("http_connection_failed", True)


async def test_redirect_is_not_followed(requests: HttpBench) -> None:
    location = f"{requests.server.url}/credentials"
    for target in ("http://169.254.169.254/latest/meta-data", location):
        requests.server.response = answer(b"", 302, Location=target)
        failure = await requests.fail({})
        assert (failure.type, failure.retryable) == ("http_status_302", False)
        requests = HttpBench(requests.server)
    assert len(requests.server.requests) == 2


async def test_environment_names_no_proxy(requests: HttpBench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    await requests.execute({})
    assert requests.server.requests[0].startswith(b"GET / ")


@pytest.mark.parametrize("addresses", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.1 169.254.169.254"])
async def test_name_does_not_lead_to_inner_network(addresses: str, requests: HttpBench) -> None:
    url = f"http://api.example.com:{requests.server.port}"
    requests.offer(names={"api.example.com": addresses}, urls=[url], networks=[])
    failure = await requests.fail({"url": url})
    assert failure.type == "http_not_allowed"
    assert "builtin.http.networks" in failure.message
    assert requests.server.requests == []


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f000001", "0"])
async def test_spelling_of_loopback_is_no_way_in(host: str, requests: HttpBench) -> None:
    url = f"http://{host}:{requests.server.port}"
    requests.offer(urls=[url], networks=[])
    assert (await requests.fail({"url": url})).type in {"http_not_allowed", "http_connection_failed"}
    assert requests.server.requests == []


async def test_request_reaches_checked_address(requests: HttpBench) -> None:
    """A name may have addresses that are refused beside an address that is allowed."""
    url = f"http://api.example.com:{requests.server.port}"
    names = {"api.example.com": "10.0.0.1 127.0.0.1"}
    requests.offer(names=names, urls=[url])
    await requests.execute({"url": url})
    assert requests.server.requests[0].partition(b"\r\n")[2].startswith(f"Host: {url[7:]}".encode())


ISOLATED: Final = ("unshare", *(() if os.getuid() == 0 else ("--map-root-user",)), "--mount", "--net")


def can_isolate() -> bool:
    """Return whether this user may have a network of its own."""
    return shutil.which("unshare") is not None and subprocess.run([*ISOLATED, "true"], check=False).returncode == 0


@pytest.mark.skipif(not can_isolate(), reason="a network of its own is needed")
async def test_name_that_changes_leads_to_checked_address(tmp_path: Path) -> None:
    """Each request is resolved once, by the system's resolver, and reaches the address that was checked."""
    process = await asyncio.create_subprocess_exec(
        *(*ISOLATED, sys.executable, "-m", "tests.worker.builtin.rebinding", str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    lines = [line for line in said.decode().splitlines() if "attempt failed" not in line]
    reached = "{'status': 200, 'text': 'public'}"
    assert lines == [reached, "http_not_allowed", reached, "2 0 3"]


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),  # noqa: S104
        *("100.100.100.200", "168.63.129.16", "192.0.0.192", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
        *(
            "::",
            "::1",
            "::7f00:1",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "fec0::1",
            "ff02::1",
            "2001::1",
            "2001:db8::1",
        ),
        *("::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::10.0.0.1", "64:ff9b::169.254.169.254"),
        *("64:ff9b:1::1", "2002:a00:1::", "2002:7f00:1::1", "100::1", "4000::1"),
    ],
)
def test_address_that_is_not_public_is_refused(address: str) -> None:
    assert not is_allowed(ip_address(address), ())
    assert not is_allowed(ip_address(address), ["192.0.2.0/24", "2001:db8:1::/48"])


@pytest.mark.parametrize(
    "address",
    ["93.184.216.34", "2606:4700::1111", "::ffff:93.184.216.34", "64:ff9b::93.184.216.34", "2002:5db8:d822::1"],
)
def test_public_address_is_allowed(address: str) -> None:
    assert is_allowed(ip_address(address), ())


def test_network_of_the_settings_is_allowed() -> None:
    assert is_allowed(ip_address("127.0.0.1"), [LOOPBACK])
    assert is_allowed(ip_address("::ffff:127.0.0.1"), [LOOPBACK])
    assert is_allowed(ip_address("fd00::1"), [LOOPBACK, "fd00::/8"])
    assert not is_allowed(ip_address("64:ff9b::10.0.0.1"), ["64:ff9b::/96"])


@pytest.mark.parametrize("reason", list(StopReason))
async def test_stopped_task_aborts_its_request(reason: StopReason, requests: HttpBench) -> None:
    requests.server.response = b""
    held = await requests.give({})
    running = asyncio.create_task(requests.executor.run(held))
    await requests.server.has_request.wait()
    held.stop(reason)
    await running
    await requests.server.is_gone.wait()
