"""The metrics of a real installation."""

from pathlib import Path
from socket import AF_INET, SOCK_STREAM, socket

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.http.test_served import greeter
from tests.system.running import running
from tocsin.bootstrap.api_server import serving


async def test_status_of_an_installation_becomes_gauges(nats_url: str, tmp_path: Path) -> None:
    with socket(AF_INET, SOCK_STREAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with (
        running(nats_url, tmp_path, worker=greeter(), server={"port": 0}, metrics={"port": port}) as tocsin,
        serving(tocsin.installation),
        httpx.AsyncClient() as client,
    ):
        text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    families = text_string_to_metric_families(text)
    samples = {(s.name, *(s.labels[name] for name in sorted(s.labels))): s.value for f in families for s in f.samples}
    parts = {key[1]: value for key, value in samples.items() if key[0] == "tocsin_metrics_part_up"}
    assert parts == dict.fromkeys(("jobs", "locks", "leader", "queues", "namespaces", "totals", "status"), 1)
    assert samples["tocsin_status_unknown_parts",] == 0
    assert 0 <= samples["tocsin_lease_renewed_seconds", "ticker"] < 60
    assert samples["tocsin_candidates_aside",] == 0
    names = {key[0] for key in samples}
    assert names >= {
        "tocsin_stream_bytes",
        "tocsin_history_lag_seconds",
        "tocsin_queue_workers",
    }
