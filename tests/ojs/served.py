"""A `tocsin dev --allow-reset` in its own process with its own nats-server."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

import httpx

from tests.cli.test_acceptance import DEADLINE, Dev, environment, program
from tests.plain_http import NO_AUTHORITIES

PATIENCE: Final = DEADLINE
"""Seconds that an answer may take."""


@dataclass(frozen=True)
class Server:
    """The URL of the server, and the token that it requires."""

    url: str
    nats_url: str
    token: str | None = None

    def client(self) -> httpx.AsyncClient:
        """Return headers of a permitted caller."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=PATIENCE, verify=NO_AUTHORITIES)


@contextmanager
def server(folder: Path, *, with_token: bool = False, **settings: str) -> Iterator[Server]:
    """Yield a server without authentication; the first token turns it on."""
    command = [sys.executable, "-m", "tocsin", "dev", "--ephemeral", "--allow-reset", "--port", "0", "-o", "json"]
    more = {"TOCSIN_SERVER__PORT": "0", "TOCSIN_METRICS__ENABLED": "false", **settings}
    with (
        (folder / "said").open("wb") as said,
        subprocess.Popen(
            command, cwd=folder, env=environment(**more), stdout=subprocess.PIPE, stderr=said, text=True
        ) as process,
    ):
        try:
            dev = begun(process, folder / "said")
            url = next(line["url"] for line in dev.lines if line.get("event") == "api")
            token = first_token(folder, dev.url) if with_token else None
            if token:
                await_authentication(url)
            yield Server(url, dev.url, token)
        finally:
            process.kill()


def begun(process: "subprocess.Popen[str]", said: Path) -> Dev:
    """Return a server that has begun; `said` is its standard error."""
    try:
        return Dev(process)
    except AssertionError:
        raise AssertionError(f"it ended with {process.wait()}: {said.read_text()}") from None


def await_authentication(url: str) -> None:
    """Wait until the server has seen the token: without tokens it checks every few seconds."""
    begun = time.monotonic()
    queues = f"{url}/ojs/v1/queues"
    while httpx.get(queues, timeout=PATIENCE, verify=NO_AUTHORITIES).status_code != HTTPStatus.UNAUTHORIZED:
        assert time.monotonic() - begun < PATIENCE, "nobody is asked for a token"
        time.sleep(0.1)


def first_token(folder: Path, nats_url: str) -> str:
    """Create the token of an administrator."""
    told = program(
        *("tokens", "create", "conformance", "--role", "scheduler-admin", "-o", "json", "--nats", nats_url), cwd=folder
    )
    assert told.returncode == 0, told.stderr
    token: str = json.loads(told.stdout)["token"]
    return token
