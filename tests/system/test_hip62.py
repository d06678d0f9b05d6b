"""The literal texts of hip-62, and a graph whose steps run outside and in a worker."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from typer.testing import CliRunner

from tests.system.running import running
from tests.system.test_mq import Outside, enveloped
from tocsin import Context, Worker
from tocsin.adapters.files import load
from tocsin.adapters.http.api.app import openapi
from tocsin.cli import app
from tocsin.domain.events import Completed, Failed, Started
from tocsin.domain.formats import read
from tocsin.subjects import Stream

ROOT: Final = Path(__file__).parents[2]

JOBS: Final = """
jobs:
  - name: provider-health-check
    schedule: "*/5 * * * *"
    timezone: UTC
    function: hanzo/llm-gateway/health-probe
    timeout: 30s
    retry: { max_attempts: 2, initial_delay: 5s, multiplier: 2 }
    lock: true
    tags: [health, llm, critical]

  - name: credit-reconciliation
    schedule: "0 */6 * * *"
    function: hanzo/iam/credit-reconcile
    timeout: 300s
    retry: { max_attempts: 3, initial_delay: 30s, multiplier: 2, max_delay: 300s }
    lock: true
    dead_letter: true
    tags: [billing, critical]

  - name: cache-warm-embeddings
    schedule: "every weekday at 7am"          # Natural language
    timezone: America/Los_Angeles
    function: hanzo/cloud/cache-warm
    input: { cache_type: embeddings, top_k: 1000 }
    timeout: 600s
    tags: [cache, performance]

  - name: nightly-benchmark
    schedule: "0 3 * * *"
    function: hanzo/ml/benchmark-suite
    input: { models: [zen-7b, zen-72b], prompt_suite: standard-v2 }
    timeout: 3600s
    retry: { max_attempts: 1 }                # No retry -- expensive
    tags: [benchmark, ml]

  - name: daily-analytics-etl
    schedule: "0 2 * * *"
    dag:
      - step: extract
        function: hanzo/analytics/etl-extract
        timeout: 1800s
      - step: transform
        function: hanzo/analytics/etl-transform
        depends_on: [extract]
        timeout: 1800s
      - step: load
        function: hanzo/analytics/etl-load
        depends_on: [transform]
        timeout: 900s
      - step: cleanup
        function: hanzo/analytics/etl-cleanup
        depends_on: [load]
        timeout: 300s
    retry: { max_attempts: 2, initial_delay: 60s }
    dead_letter: true
    tags: [analytics, etl]

  - name: model-drift-check
    schedule: "0 6 * * 1"                     # Mondays at 06:00 UTC
    function: hanzo/ml/drift-evaluation
    input: { models: [zen-72b-finance, zen-7b-code], threshold: 0.05 }
    timeout: 7200s
    tags: [ml, evaluation, weekly]
"""

ALERTS: Final = """
groups:
  - name: hanzo-scheduler
    rules:
      - alert: ScheduledJobFailing
        expr: increase(hanzo_scheduler_executions_total{status="failed"}[1h]) > 3
        labels: { severity: warning }

      - alert: DeadLettersAccumulating
        expr: increase(hanzo_scheduler_dead_letters_total[24h]) > 0
        labels: { severity: critical }

      - alert: SchedulerLeaderLost
        expr: absent(hanzo_scheduler_leader_active) == 1
        for: 1m
        labels: { severity: critical }
"""

DEPLOYMENT: Final = """
apiVersion: apps/v1
kind: Deployment
metadata:
  name: hanzo-scheduler
  namespace: hanzo
spec:
  replicas: 2
  template:
    metadata:
      labels: { app: hanzo-scheduler }
      annotations: { prometheus.io/scrape: "true", prometheus.io/port: "9090" }
    spec:
      containers:
        - name: scheduler
          image: hanzoai/scheduler:latest
          ports:
            - { containerPort: 8062, name: api }
            - { containerPort: 9090, name: metrics }
          env:
            - name: DATABASE_URL
              valueFrom: { secretKeyRef: { name: scheduler-secrets, key: database-url } }
            - { name: NATS_URL, value: "nats://nats-mq.hanzo.svc:4222" }
          resources:
            requests: { memory: 128Mi, cpu: 100m }
            limits:   { memory: 512Mi, cpu: 500m }
          readinessProbe: { httpGet: { path: /v1/health, port: 8062 } }
"""

ENDPOINTS: Final = """
POST   /v1/jobs                     Register a new job
GET    /v1/jobs                     List jobs (with next fire time)
GET    /v1/jobs/{name}              Job details and schedule
PUT    /v1/jobs/{name}              Update job definition
DELETE /v1/jobs/{name}              Delete a job
POST   /v1/jobs/{name}/trigger      Trigger immediate execution
POST   /v1/jobs/{name}/pause        Pause scheduling
POST   /v1/jobs/{name}/resume       Resume scheduling

GET    /v1/executions               List executions (filter by job, status, time)
GET    /v1/executions/{id}          Execution details (including DAG step states)
POST   /v1/executions/{id}/cancel   Cancel a running execution

GET    /v1/dead-letters             List unresolved dead letters
POST   /v1/dead-letters/{id}/replay Replay a dead letter
PATCH  /v1/dead-letters/{id}        Mark as resolved

GET    /v1/schedule                 Upcoming fire times (next 24h)
GET    /v1/health                   Health check
"""

COMMANDS: Final = """
hanzo-scheduler jobs list                                    # List with next fire times
hanzo-scheduler jobs apply -f scheduler-jobs.yaml            # Register from YAML
hanzo-scheduler jobs trigger credit-reconciliation           # Immediate execution
hanzo-scheduler jobs pause nightly-benchmark                 # Pause scheduling
hanzo-scheduler executions list --job credit-reconciliation  # Recent executions
hanzo-scheduler schedule                                     # Upcoming 24h
hanzo-scheduler dead-letters list --unresolved               # Failed jobs
hanzo-scheduler dead-letters replay <id>                     # Retry a failure
"""

ENVELOPE: Final = """
{
  "schema": "hanzo.mq.v1",
  "id": "task_01HQ3X7K8M2N4P5R6S7T8U9V0W",
  "type": "scheduler.execute",
  "source": "scheduler",
  "timestamp": "2026-02-23T02:00:00.000Z",
  "data": {
    "job_name": "credit-reconciliation",
    "execution_id": "exec_01HQ3X...",
    "function": "hanzo/iam/credit-reconcile",
    "input": {},
    "attempt": 1,
    "timeout": 300
  }
}
"""


def test_job_registry_is_the_example() -> None:
    assert list(read(yaml.safe_load(JOBS))) == list(load(ROOT / "examples/jobs.yaml"))


def test_alerts_are_those_of_compose() -> None:
    deployed = yaml.safe_load((ROOT / "compose/prometheus/alerts.yml").read_text())
    [ours] = [group for group in deployed["groups"] if group["name"] == "hanzo-scheduler"]
    for rule in ours["rules"]:
        rule.pop("annotations")
        # Every copy of the API exports the same numbers, so that each alert would fire once for each copy.
        # The part after `or` is for jobs that are younger than the window.
        rule["expr"] = re.sub(r"max without \(instance\) \((.+)\) >", r"\1 >", rule["expr"].partition(" or ")[0])
    assert {"groups": [ours]} == yaml.safe_load(ALERTS)


def test_deployment_has_the_ports_and_limits() -> None:
    """Two deployments of ours are one of the specification: the stages and the API."""
    given = yaml.safe_load(DEPLOYMENT)
    documents = list(yaml.safe_load_all((ROOT / "compose/kubernetes/tocsin.yaml").read_text()))
    ours = [
        d
        for d in documents
        if d["metadata"]["name"] in {"tocsin-scheduler", "tocsin-api"} and d["kind"] == "Deployment"
    ]
    assert {d["spec"]["replicas"] for d in ours} == {given["spec"]["replicas"]}
    pods = [d["spec"]["template"] for d in ours]
    annotations = given["spec"]["template"]["metadata"]["annotations"]
    assert any(annotations.items() <= (pod["metadata"].get("annotations") or {}).items() for pod in pods)
    [expected] = given["spec"]["template"]["spec"]["containers"]
    containers = [container for pod in pods for container in pod["spec"]["containers"]]
    assert {port["containerPort"] for c in containers for port in c["ports"]} >= {8062, 9090}
    assert all(container["resources"] == expected["resources"] for container in containers)
    probes = [container["readinessProbe"]["httpGet"] for container in containers]
    assert expected["readinessProbe"]["httpGet"] in probes
    assert all("DATABASE_URL" in {variable["name"] for variable in c["env"]} for c in containers)


def test_every_endpoint_of_the_specification_is_served() -> None:
    paths = openapi("0")["paths"]
    lines = [line.split(maxsplit=2)[:2] for line in ENDPOINTS.splitlines() if line]
    assert len(lines) == 16
    assert [(verb, path) for verb, path in lines if verb.lower() not in paths.get(path, {})] == []


@pytest.mark.parametrize("line", COMMANDS.strip().splitlines())
def test_every_command_of_the_specification_is_parsed(line: str) -> None:
    words = line.partition("#")[0].replace("<id>", "0193a5b0").split()[1:]
    result = CliRunner().invoke(app, ["--nats", "nats://127.0.0.1:1", *words, "--help"])
    assert (result.exit_code, "Usage" in result.output) == (0, True)


async def test_task_has_the_fields_of_the_envelope(nats_url: str, tmp_path: Path) -> None:
    async with running(nats_url, tmp_path, queues={"default": {"transport": "mq"}}) as tocsin:
        [job] = [job for job in read(yaml.safe_load(JOBS)) if job.name == "credit-reconciliation"]
        await tocsin.apply(job.model_dump(mode="json"))
        await tocsin.trigger("credit-reconciliation")
        [recorded] = await tocsin.until(partial(tocsin.log.read, "mq.scheduled.>"))
        subject, body = recorded.subject, recorded.message.document()
        assert subject == "mq.scheduled.credit-reconciliation"
        expected = json.loads(ENVELOPE)
        assert {name: type(body[name]) for name in expected} == {name: type(expected[name]) for name in expected}
        assert all(body[name] == expected[name] for name in ("schema", "type", "source"))
        fixed = {name: value for name, value in expected["data"].items() if name != "execution_id"}
        assert {name: body["data"][name] for name in fixed} == fixed
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", body["timestamp"])


async def test_graph_mixes_outside_and_own_workers(nats_url: str, tmp_path: Path) -> None:
    worker, contexts = Worker(), list[Context]()

    @worker.task("transform")
    async def transform(context: Context) -> dict[str, Any]:
        contexts.append(context)
        return {"rows": 2 * context.upstream["extract"]["rows"]}  # type: ignore[call-overload, index, operator]

    queues = {"functions": {"transport": "mq"}}
    dag = [
        {"name": "extract", "function": "extract", "queue": "functions"},
        {"name": "transform", "function": "transform", "depends_on": ["extract"]},
        {"name": "load", "function": "load", "queue": "functions", "depends_on": ["transform"]},
    ]
    async with running(nats_url, tmp_path, worker=worker, queues=queues) as tocsin:
        tasks = await tocsin.installation.connection.client.jetstream().pull_subscribe(
            f"{tocsin.settings.mq_prefix}.scheduled.>",
            durable="job-executors",
            stream=tocsin.installation.names.stream(Stream.MQ),
        )
        executor = Outside(tocsin, tasks)
        await tocsin.apply({"name": "etl", "dag": dag, "retry": {"max_attempts": 1}})
        await tocsin.trigger("etl")
        extract = await executor.take()
        answer = f"etl.{extract['execution_id']}"
        await executor.answer(answer, enveloped({"status": "completed", "result": {"rows": 3}}))
        load_task = await executor.take()
        assert (load_task["step"], load_task["upstream"]) == ("load", {"transform": {"rows": 6}})
        await executor.answer(answer, enveloped({"status": "failed", "error": "disk full", "retryable": False}))
        [failed] = await tocsin.ended("etl", Failed)
        assert failed.error is not None
        assert (failed.step, failed.error.message) == ("load", "disk full")
        assert [context.queue for context in contexts] == ["default"]
        assert await tocsin.of_executions("etl", Completed) == []
        workers = {started.step: started.worker for started in await tocsin.of_executions("etl", Started)}
        assert workers == {"extract": "mq-bridge", "transform": worker.options.name, "load": "mq-bridge"}
