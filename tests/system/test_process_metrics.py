"""The metrics that real processes of stages, workers and the API serve, and the dashboards over them."""

import json
import re
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Final

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.system.processes import Program, Site, site
from tests.system.prometheus import NEEDS_PROMETHEUS, label_names, prometheus, until, values
from tocsin.adapters.nats.server.embedded import ANY_PORT, EmbeddedServer
from tocsin.domain.events import Completed, Failed

Samples = dict[tuple[str, ...], float]
DASHBOARDS: Final = Path(__file__).parents[2] / "compose/grafana/dashboards"
CHOICES: Final = {"$job": "etl", "$durable": ".*"}
"""What a reader chooses at the top of the dashboards."""
STREAM: Final = "SHOPMETRICS"
HIP_62: Final = {
    "executions_total": ({"job", "status", "trigger"}, '{job="etl", status="completed", trigger="cron"} > bool 0'),
    "retries_total": ({"job"}, '{job="etl"} > bool 0'),
    "dead_letters_total": ({"job"}, '{job="wrong"}'),
    "execution_duration_seconds_bucket": ({"job", "le"}, '{job="etl", le="+Inf"} > bool 0'),
    "execution_duration_seconds_sum": ({"job"}, '{job="etl"} > bool 0'),
    "execution_duration_seconds_count": ({"job"}, '{job="etl"} > bool 0'),
    "jobs_registered": (set[str](), " == bool 4"),
    "next_fire_seconds": ({"job"}, '{job="etl"} <= bool 1'),
    "lock_held": ({"job"}, '{job="waits"}'),
    "dag_steps_total": ({"job", "step", "status"}, '{job="etl", step="load", status="completed"} > bool 0'),
    "leader_active": ({"lease"}, '{lease="ticker"}'),
}
"""The samples of hip-62's nine metrics: their labels, and a selection that is 1 once everything happened."""


def url_of(program: Program) -> str:
    """Return the URL of the metrics that a program serves."""
    [url] = set(re.findall(r"http://127\.0\.0\.1:\d+/metrics", program.said()))
    return str(url)


async def samples(program: Program) -> Samples:
    """Return the samples of a program by name and values of labels."""
    url = url_of(program)
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
        for job, end in (
            ("job", Completed),
            ("wrong", Failed),
        ):  # one after the other, or both reports may be one message
            await tocsin.trigger(job)
            await tocsin.ended(job, end)
        of_worker, of_stages = await samples(worker), await samples(stages)
        assert of_worker["tocsin_handler_outcomes_total", "work", "succeeded"] == 1
        assert of_worker["tocsin_handler_outcomes_total", "broken", "failed"] >= 1
        assert of_worker["tocsin_running_tasks", "work"] == 0
        assert of_worker["tocsin_appends_total", "REPORTS"] >= 2
        assert of_stages["tocsin_appends_total", "COMMITS"] >= 5  # the term, and two or more for each execution
        assert abs(of_stages["tocsin_clock_offset_seconds",]) < 10
        assert of_stages["process_resident_memory_bytes",] > 0


async def test_processes_answer_probes_truly(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "server", ANY_PORT).start() as server:
        async with site(server.url, tmp_path, metrics={"enabled": False, "process_port": 0}) as tocsin:
            programs = [tocsin.start(), tocsin.start_worker()]
            await tocsin.ready()
            assert [await probed(program, "readyz") for program in programs] == [(200, "ok\n")] * 2
            assert [await probed(program, "livez") for program in programs] == [(200, "ok\n")] * 2
            server.stop(timeout_s=0.0)

            async def know() -> bool:
                return [await probed(program, "readyz") for program in programs] == [(503, "not connected to NATS")] * 2

            await tocsin.until(know)
            assert [await probed(program, "livez") for program in programs] == [(200, "ok\n")] * 2


async def test_process_is_alive_before_it_is_ready(nats_url: str, tmp_path: Path) -> None:
    async with site(nats_url, tmp_path, metrics={"enabled": False, "process_port": 0}) as tocsin:
        tocsin.address("nats://127.0.0.1:9")  # no server listens there
        waiting = tocsin.start()

        async def serves() -> bool:
            return '"process-metrics-serving"' in waiting.said()

        await tocsin.until(serves)
        assert await probed(waiting, "livez") == (200, "ok\n")
        assert await probed(waiting, "readyz") == (503, "not connected to NATS")


async def probed(program: Program, probe: str) -> tuple[int, str]:
    """Return the status and the text that a probe of a program gets."""
    async with httpx.AsyncClient() as client:
        answer = await client.get(url_of(program).removesuffix("metrics") + probe)
    return answer.status_code, answer.text


def expressions() -> Iterator[tuple[str, str]]:
    """Yield each expression of the dashboards, with its dashboard and panel."""
    for path in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                expression = target["expr"]
                for variable, value in CHOICES.items():
                    expression = expression.replace(variable, value)
                assert "$" not in expression
                yield f"{path.stem}: {panel['title']}", expression


async def publish(tocsin: Site) -> None:
    """Publish an event that starts the job `by-event`."""
    await tocsin.installation.connection.store("shopmetrics.orders", b"{}", {})


async def everything_happens(tocsin: Site) -> None:
    """Run a graph on a schedule with retries and a job by events, let an execution fail and another wait."""
    stream = {"name": STREAM, "subjects": ["shopmetrics.>"], "storage": "memory"}
    await tocsin.installation.connection.manage(f"STREAM.CREATE.{STREAM}", json.dumps(stream).encode())
    await tocsin.apply(
        {
            "name": "etl",
            "schedule": "@every 1s",
            "dag": [
                {"name": "extract", "function": "work"},
                {
                    "name": "load",
                    "function": "flaky",
                    "args": [1],
                    "depends_on": ["extract"],
                    "retry": {"initial_delay": 0.01, "jitter": 0},
                },
            ],
        },
        {"name": "wrong", "function": "broken", "retry": {"max_attempts": 1}, "dead_letter": True},
        {"name": "waits", "function": "work", "queue": "empty"},
        {"name": "by-event", "function": "work", "triggers": [{"nats": "shopmetrics.orders"}]},
    )
    await tocsin.trigger("wrong")
    await tocsin.trigger("waits")


@NEEDS_PROMETHEUS
async def test_every_expression_of_the_dashboards_has_data(nats_url: str, tmp_path: Path) -> None:
    opened = {"streams": {STREAM: ["shopmetrics.>"]}}
    async with site(nats_url, tmp_path, metrics={"port": 0, "process_port": 0}, triggers=opened) as tocsin:
        stages, worker, gateway = tocsin.start(), tocsin.start_worker(), tocsin.start_gateway(0)
        await tocsin.ready()
        await everything_happens(tocsin)
        [api] = set(re.findall(r"http://127\.0\.0\.1:\d+(?!\d|/metrics)", gateway.said()))
        ports = {
            program.name: int(url_of(program).split(":")[2].removesuffix("/metrics")) for program in tocsin.programs
        }
        async with (
            prometheus(
                tmp_path, tocsin=[ports[gateway.name]], processes=[ports[stages.name], ports[worker.name]]
            ) as client,
            httpx.AsyncClient(base_url=api) as caller,
        ):
            # Only the MQ bridge has durables.
            empty: list[tuple[str, str]] = [each for each in expressions() if "tocsin_durable" not in each[1]]

            async def all_have_data() -> bool:
                (await caller.get("/v1/jobs")).raise_for_status()
                await publish(tocsin)
                empty[:] = [each for each in empty if all(map(isnan, await values(client, each[1])))]
                return not empty

            try:
                await tocsin.until(all_have_data)
            except AssertionError:
                pytest.fail(f"no data: {empty}")
            for name, (labels, selection) in HIP_62.items():
                await until(client, f"hanzo_scheduler_{name}{selection}", [1])
                assert await label_names(client, f"hanzo_scheduler_{name}") == labels, name
