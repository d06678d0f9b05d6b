"""A real Prometheus, with the rules and scrape configurations of `compose/`."""

import asyncio
import json
import shutil
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml

PROMETHEUS: Final = Path(__file__).parents[2] / "compose/prometheus"
PATIENCE_S: Final = 60.0
NEEDS_PROMETHEUS: Final = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="the program `prometheus` is not installed"
)


@asynccontextmanager
async def prometheus(
    folder: Path, *, tocsin: Sequence[int], processes: Sequence[int] = ()
) -> AsyncIterator[httpx.AsyncClient]:
    """Run Prometheus with the alerts of `compose/`; yield a client of its API.

    `tocsin`, `processes`: the local ports for two of its scrape configurations.
    """
    configuration: dict[str, Any] = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    scrapes = {each["job_name"]: each for each in configuration["scrape_configs"]}
    used = {"tocsin": tocsin, "tocsin-processes": processes}
    for name, ports in used.items():
        del scrapes[name]["dns_sd_configs"]
        scrapes[name]["static_configs"] = [{"targets": [f"127.0.0.1:{port}" for port in ports]}]
    rules = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = "2s"
    (folder / "alerts.yml").write_text(yaml.safe_dump(rules))
    written = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [scrapes[name] for name in used],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(written))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            yield client
    finally:
        program.terminate()
        await program.wait()


async def values(client: httpx.AsyncClient, expression: str) -> list[float]:
    """Return the values of an instant query, in order."""
    try:
        answer = await client.get("/api/v1/query", params={"query": expression})
    except httpx.TransportError:  # it starts
        return []
    if answer.status_code != httpx.codes.OK:
        return []
    return sorted(float(each["value"][1]) for each in json.loads(answer.text)["data"]["result"])


async def label_names(client: httpx.AsyncClient, metric: str) -> set[str]:
    """Return the names of labels that the series of a metric have, without those of the scrape."""
    answer = await client.get("/api/v1/series", params={"match[]": metric})
    series: list[dict[str, str]] = json.loads(answer.text)["data"]
    of_scrape = {("job", "tocsin")}  # of samples without a label of that name
    return {name for labels in series for name, _ in labels.items() - of_scrape} - {"__name__", "instance"}


async def until(client: httpx.AsyncClient, expression: str, expected: list[float]) -> None:
    """Wait until an instant query has these values."""
    seen: list[float] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            while (seen := await values(client, expression)) != expected:  # noqa: ASYNC110 - Prometheus announces nothing
                await asyncio.sleep(0.1)
    except TimeoutError:
        pytest.fail(f"{expression} is {seen}, not {expected}")
