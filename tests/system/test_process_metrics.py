"""The metrics that real processes of stages and workers serve."""

import re
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.system.processes import Program, site

Samples = dict[tuple[str, ...], float]


async def samples(program: Program) -> Samples:
    """Return the samples of a program by name and values of labels."""
    [url] = set(re.findall(r"http://127\.0\.0\.1:\d+/metrics", program.said()))
    async with httpx.AsyncClient() as client:
        text = (await client.get(url)).text
        assert (await client.get(url.removesuffix("/metrics"))).status_code == httpx.codes.NOT_FOUND
    families = text_string_to_metric_families(text)
    return {(s.name, *(s.labels[name] for name in sorted(s.labels))): s.value for f in families for s in f.samples}


async def test_stages_and_workers_serve_their_own_metrics(nats_url: str, tmp_path: Path) -> None:
    async with site(nats_url, tmp_path, metrics={"enabled": False, "process_port": 0}) as tocsin:
        stages, worker = tocsin.start(), tocsin.start_worker()
        await tocsin.ready()
        await tocsin.apply(
            {"name": "job", "function": "work"}, {"name": "wrong", "function": "broken", "retry": {"max_attempts": 1}}
        )
        await tocsin.trigger("job")
        await tocsin.trigger("wrong")

        async def are_over() -> bool:
            return (await tocsin.ends()).keys() >= {"job", "wrong"}

        await tocsin.until(are_over)
        of_worker, of_stages = await samples(worker), await samples(stages)
        assert of_worker["tocsin_handler_outcomes_total", "work", "succeeded"] == 1
        assert of_worker["tocsin_handler_outcomes_total", "broken", "failed"] >= 1
        assert of_worker["tocsin_running_tasks", "work"] == 0
        assert of_worker["tocsin_appends_total", "REPORTS"] >= 2
        assert of_stages["tocsin_appends_total", "LOG"] >= 6
        assert abs(of_stages["tocsin_clock_offset_seconds",]) < 10
        assert of_stages["process_resident_memory_bytes",] > 0
