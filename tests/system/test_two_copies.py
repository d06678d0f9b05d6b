"""Two processes of every stage, and two workers: any copy may decide, with one result."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.system.processes import Site, site
from tests.system.worker_process import noted
from tocsin.domain.events import Completed

TRIGGERS = 1_000
RETRY = {"max_attempts": 4, "initial_delay": 0.1, "multiplier": 1.5}


def graph(**steps: Sequence[str]) -> list[dict[str, Any]]:
    """Steps by name with their dependencies; steps named `flaky…` fail twice before they succeed."""
    return [
        {"name": name, "depends_on": list(depends_on), "function": "work"}
        if not name.startswith("flaky")
        else {"name": name, "depends_on": list(depends_on), "function": "flaky", "input": {"failures": 2}}
        for name, depends_on in steps.items()
    ]


GRAPHS = {
    "chain": graph(a=(), b="a", c="b"),
    "diamond": graph(a=(), b="a", c="a", d="bc"),
    "fan": graph(a=(), b="a", c="a", d="a", e="a", f="bcde"),
    "islands": graph(a=(), b=(), c=(), d="ab"),
    "patient": graph(a=(), flaky=("a",), b="a", c=("flaky", "b")),
}


@pytest.fixture
async def tocsin(nats_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    # A busy machine must not make a live process look dead.
    patience = {"stages": {"ack_wait": 30}, "worker": {"ack_wait": 30}}
    async with site(nats_url, tmp_path, **patience) as it:
        yield it


@pytest.mark.full
@pytest.mark.slow
async def test_each_step_of_a_thousand_graphs_runs_once(tocsin: Site) -> None:
    for _ in range(2):
        tocsin.start()
        tocsin.start_worker()
    await tocsin.apply(
        *({"name": n, "dag": dag, "retry": RETRY, "overlap_policy": "allow"} for n, dag in GRAPHS.items())
    )
    await tocsin.ready()
    names = [name for _, name in zip(range(TRIGGERS), list(GRAPHS) * TRIGGERS, strict=False)]
    await asyncio.gather(*(tocsin.trigger(name) for name in names))

    everything = await tocsin.checked()

    assert len(everything.facts(Completed)) == TRIGGERS
    runs = everything.runs()
    assert len(runs) == sum(len(GRAPHS[name]) + 2 * (name == "patient") for name in names)
    assert set(runs.values()) == {1}
    assert noted(tocsin.runs) == runs
    await tocsin.history_agrees_with(everything)
