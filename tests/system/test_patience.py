"""A process that waits for the log at its start stops on request, in order."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.clustered import clustered, lose_majority
from tests.system.processes import Program, Site, site
from tests.system.test_shutdown import IN_ORDER, ended, says

PROGRAMS: dict[str, Callable[[Site], Program]] = {
    "stages": lambda tocsin: tocsin.start(),
    "worker": lambda tocsin: tocsin.start_worker(),
    "gateway": lambda tocsin: tocsin.start_gateway(0),
}


async def test_while_no_server_is_there(nats_url: str, tmp_path: Path) -> None:
    async with site(nats_url, tmp_path) as tocsin:
        tocsin.address("nats://127.0.0.1:1")
        for start in PROGRAMS.values():
            program = start(tocsin)
            await says(tocsin, program, "nats-awaited")
            program.send(signal.SIGTERM)
            assert await ended(tocsin, program) == IN_ORDER, program.said()


@pytest.mark.slow
async def test_while_the_cluster_has_no_majority(tmp_path: Path) -> None:
    async with clustered(tmp_path) as (tocsin, cluster):
        await lose_majority(tocsin, cluster)
        waiting = {name: start(tocsin) for name, start in PROGRAMS.items()}
        for name, program in waiting.items():
            await says(tocsin, program, "agent-not-answered" if name == "worker" else "log-awaited")
        for program in waiting.values():
            program.send(signal.SIGTERM)
            assert await ended(tocsin, program) == IN_ORDER, program.said()
