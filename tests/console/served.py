"""A `tocsin dev` with jobs of every kind, tokens of every role, and hostile content, for a browser."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from tests.cli.test_acceptance import Dev, environment
from tests.ojs.served import PATIENCE, await_authentication, begun, first_token
from tests.plain_http import NO_AUTHORITIES

HOSTILE: Final = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>{{7*7}}\'"'
"""Text that would run where a page takes it for HTML."""
ROLES: Final = ("scheduler-admin", "scheduler-operator", "scheduler-author", "scheduler-viewer")
JOBS: Final = f"""
jobs:
  - name: etl
    description: {json.dumps(HOSTILE)}
    dag:
      - {{step: extract, function: ok}}
      - {{step: transform, function: ok, depends_on: [extract]}}
      - {{step: check, function: ok, depends_on: [extract]}}
      - {{step: load, function: ok, depends_on: [transform, check]}}
    input_schema:
      type: object
      required: [day]
      properties:
        day: {{type: string, title: Day}}
        rows: {{type: integer, minimum: 1}}
        deep: {{type: boolean}}
        kind: {{enum: [full, delta]}}
    input: {{day: monday}}
  - name: broken
    function: broken
    retry: {{max_attempts: 1}}
    dead_letter: true
    tags: [{json.dumps(HOSTILE)}]
  - name: guarded
    retry: {{max_attempts: 1}}
    dag:
      - {{step: work, function: broken}}
      - {{step: alert, function: ok, callback: on_failure}}
  - name: slow
    function: slow
    overlap_policy: allow
    timeout: 1h
  - name: minutely
    schedule: "* * * * *"
    function: ok
    timezone: America/New_York
  - name: nightly
    schedule: "0 2 * * *"
    function: ok
    timezone: Europe/Prague
    tags: [billing]
  - name: hidden
    function: ok
    viewers: ["token:another"]
"""
WORKER: Final = f"""
import asyncio
from types import SimpleNamespace
from tocsin import Context, Worker
from tocsin.worker import agent

HOSTILE = {HOSTILE!r}
agent.socket = SimpleNamespace(gethostname=lambda: HOSTILE)  # a worker names its host as it likes
worker = Worker()

@worker.task("ok")
async def ok(context: Context) -> dict:
    context.logger.info(HOSTILE)
    return {{"said": HOSTILE}}

@worker.task("broken")
async def broken(context: Context) -> None:
    raise ValueError(HOSTILE)

@worker.task("slow")
async def slow(context: Context) -> None:
    await context.progress(0.5, HOSTILE)
    await asyncio.sleep(3600)

@worker.task("chatty")
async def chatty(context: Context) -> None:
    for number in range(18_000):
        context.logger.info(f"line {{number}}.")
        await context.progress(0.25, f"part {{number}}.")
        await asyncio.sleep(0.2)
"""


@dataclass(frozen=True)
class Console:
    """A running installation."""

    url: str
    tokens: dict[str, str]
    """A token of each role."""
    dev: Dev

    def api(self, method: str, path: str, role: str = "scheduler-admin", **more: Any) -> Any:  # noqa: ANN401 - JSON
        """Send a request as a role, and return the answer's JSON."""
        headers = {"Authorization": f"Bearer {self.tokens[role]}", **more.pop("headers", {})}
        url, more = f"{self.url}{path}", {"timeout": PATIENCE, "verify": NO_AUTHORITIES, **more}
        answer = httpx.request(method, url, headers=headers, **more)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def token(self, role: str) -> str:
        """Create a token of a role."""
        token: str = self.api("POST", "/v1/tokens", json={"identity": role, "roles": [role]})["token"]
        return token

    def run(self, job: str, until: str, **body: Any) -> str:  # noqa: ANN401 - JSON
        """Trigger a job, and wait until the history has the status of its execution; return the id."""
        execution: str = self.api("POST", f"/v1/jobs/{job}/trigger", json=body)["execution_id"]
        self.wait(execution, until)
        return execution

    def wait(self, execution: str, status: str) -> None:
        """Wait until the history has a status of an execution."""
        started = time.monotonic()
        while not self.api("GET", f"/v1/executions?id_prefix={execution}&status={status}")["executions"]:
            assert time.monotonic() - started < PATIENCE, f"{execution} is not {status}"
            time.sleep(0.1)


@contextmanager
def served(folder: Path, jobs: str = JOBS, worker: str = WORKER, **variables: str) -> Iterator[Console]:
    """Yield a running installation with some jobs, and the module of their worker."""
    (folder / "jobs.yaml").write_text(jobs)
    (folder / "work.py").write_text(worker)
    command = [sys.executable, "-m", "tocsin", "dev", "--ephemeral", "--port", "0", "-o", "json"]
    command += ["--jobs", "jobs.yaml", "--worker", "work.py:worker"]
    settings = {
        "TOCSIN_SERVER__PORT": "0",
        "TOCSIN_METRICS__ENABLED": "false",
        "TOCSIN_SERVER__RATE": "null",
        "TOCSIN_SERVER__TRACE_URL": "https://traces.example.com/trace/{trace_id}",
        **variables,
    }
    with (
        (folder / "said").open("wb") as said,
        subprocess.Popen(
            command, cwd=folder, env=environment(**settings), stdout=subprocess.PIPE, stderr=said, text=True
        ) as process,
    ):
        try:
            dev = begun(process, folder / "said")
            url = next(line["url"] for line in dev.lines if line.get("event") == "api")
            console = Console(url, {ROLES[0]: first_token(folder, dev.url)}, dev)
            await_authentication(url)
            for role in ROLES[1:]:
                console.tokens[role] = console.token(role)
            yield console
        finally:
            process.kill()
