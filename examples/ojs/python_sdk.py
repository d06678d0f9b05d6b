"""Enqueue, work, run a workflow and register a cron job with the official Python SDK.

    OJS_URL=http://127.0.0.1:8062 OJS_TOKEN=… python examples/ojs/python_sdk.py

The SDK is https://github.com/openjobspec/ojs-python-sdk. It is on no package index: `ojs` on PyPI is another project.
"""

import asyncio
import json
import os

import ojs
from ojs.middleware import EnqueueNext, ExecutionNext

URL = os.environ.get("OJS_URL", "http://127.0.0.1:8062")
TOKEN = os.environ.get("OJS_TOKEN")
HEADERS = {"Accept": "application/json", **({"Authorization": f"Bearer {TOKEN}"} if TOKEN else {})}
QUEUE = "python-sdk"

worker = ojs.Worker(URL, queues=[QUEUE], poll_interval=0.1, headers=HEADERS)
alerts: list[str] = []
teams: list[str] = []


@worker.middleware
async def note_team(ctx: ojs.JobContext, proceed: ExecutionNext) -> object:
    """Wrap each job, as metrics and traces do."""
    if team := (ctx.job.meta or {}).get("team"):
        teams.append(team)
    return await proceed()


async def add_team(request: ojs.JobRequest, proceed: EnqueueNext) -> ojs.Job | None:
    """Run before each job is enqueued."""
    request.meta = {**(request.meta or {}), "team": "mail"}
    return await proceed(request)


@worker.register("email.send")
async def send(ctx: ojs.JobContext) -> dict[str, str]:
    """Send a mail."""
    return {"to": ctx.args[0]}


@worker.register("email.fail")
async def fail(ctx: ojs.JobContext) -> None:
    """Fail, without another attempt."""
    raise ValueError(f"no address {ctx.args[0]}")


@worker.register("email.alert")
async def alert(ctx: ojs.JobContext) -> None:
    """Run after a batch in which a job failed."""
    alerts.append(ctx.args[0])


async def ended(client: ojs.Client, workflow_id: str) -> ojs.Workflow:
    """Wait for the end of a workflow."""
    while (workflow := await client.get_workflow(workflow_id)).state in {"pending", "running"}:  # noqa: ASYNC110 - of a server
        await asyncio.sleep(0.1)
    return workflow


async def main() -> None:
    """Print what happened as JSON."""
    async with ojs.Client(URL, headers=HEADERS) as client:
        client.enqueue_middleware(add_team)
        unique = ojs.UniquePolicy(keys=["type", "args"], on_conflict="reject")
        job = await client.enqueue("email.send", ["ada@example.com"], queue=QUEUE, unique=unique)
        try:
            await client.enqueue("email.send", ["ada@example.com"], queue=QUEUE, unique=unique)
        except ojs.DuplicateJobError:
            second = "duplicate"
        else:
            second = "created"
        working = asyncio.create_task(worker.start())
        while (shown := await client.get_job(job.id)).state.value != "completed":  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.1)
        sends = [
            ojs.JobRequest(type="email.send", args=[f"{name}@example.com"], queue=QUEUE) for name in ("bob", "eve")
        ]
        chain = await client.workflow(ojs.chain("one by one", sends))
        once = ojs.RetryPolicy(max_attempts=1)
        broken = ojs.JobRequest(type="email.fail", args=["unknown"], queue=QUEUE, retry=once)
        on_failure = ojs.JobRequest(type="email.alert", args=["a mail failed"], queue=QUEUE)
        batch = await client.workflow(ojs.batch("together", [*sends, broken], on_failure=on_failure))
        states = [(await ended(client, workflow.id)).state for workflow in (chain, batch)]
        cron = await client.register_cron_job("python-sdk", "0 9 * * *", "email.send", ["ada@example.com"], queue=QUEUE)
        await worker.stop()
        await working
    print(
        json.dumps(
            {
                "job": shown.state.value,
                "result": shown.result,
                "second": second,
                "workflows": states,
                "alerts": alerts,
                "teams": teams,
                "cron": cron.get("cron_job", cron)["name"],
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
