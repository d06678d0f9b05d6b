"""Two teams on one installation with real servers: neither gRPC nor webhooks cross from one to the other."""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
import pytest

from tests.grpc.conftest import Stub, compiled
from tests.grpc.test_scheduler import STATUS, bearer, refusal
from tests.ports import free_port
from tests.system.running import DEADLINE, Running, running
from tests.system.test_webhooks import is_empty
from tocsin.adapters.http.auth.tokens import Tokens
from tocsin.bootstrap.api_server import serving
from tocsin.domain.access import Role
from tocsin.domain.events import Actor, Admitted, Message, Namespace
from tocsin.services.namespaces import Namespaces

__all__ = ["compiled"]

pytestmark = pytest.mark.slow

SECRETS: Final = {team: f"the-secret-of-{team}-with-32-bytes-" for team in ("payments", "billing")}
OPENED: Final = {
    "webhooks": {f"{team.upper()}_SECRET": [f"/hooks/{team}/*", f"/hooks/{team}/deep/*"] for team in SECRETS}
}
ROLES: Final = (Role.VIEWER, Role.OPERATOR, Role.AUTHOR)


@dataclass
class Teams:
    """An installation with the API, gRPC, and a job with a webhook for each of two teams."""

    tocsin: Running
    client: httpx.AsyncClient
    stub: Any
    tokens: dict[str, str]

    def headers(self, team: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[team]}"}

    async def register(self, team: str, job: str, path: str, **more: object) -> httpx.Response:
        """Register a job with a webhook, as an author of a team."""
        body = {"name": job, "function": "f", "queue": f"{team}.work", "triggers": [{"webhook": path}], **more}
        return await self.client.post("/v1/jobs", json=body, headers=self.headers(team))

    async def push(self, path: str, team: str, delivery: str) -> int:
        """Send a request to a path, signed by the secret of a team."""
        body = json.dumps({"delivery": delivery}).encode()
        signature = hmac.digest(SECRETS[team].encode(), body, "sha256").hex()
        headers = {
            "Content-Type": "application/json",
            "X-GitHub-Delivery": delivery,
            "X-Hub-Signature-256": f"sha256={signature}",
        }
        return (await self.client.post(path, content=body, headers=headers)).status_code

    async def everything(self) -> list[Message]:
        """The stored events of jobs and executions."""
        return [
            recorded.message
            for subject in ("ledger.>", "execution.>", "trigger.>", "cancel.>")
            for recorded in await self.tocsin.facts(subject, Message)
            if getattr(recorded.message, "type", None) not in {"due", "passed"}
        ]


@asynccontextmanager
async def two_teams(nats_url: str, tmp_path: Path, compiled: Path) -> AsyncIterator[Teams]:
    port = free_port()
    more: dict[str, Any] = {
        "metrics": {"enabled": False},
        "server": {"port": 0},
        "grpc": {"port": port},
        "queues": {f"{team}.work": {"transport": "matched"} for team in SECRETS},
        "triggers": OPENED,
    }
    async with running(nats_url, tmp_path, **more) as tocsin:
        parts = tocsin.installation
        await Namespaces(tocsin.log).apply(
            [Namespace(name=team) for team in SECRETS], by=Actor(identity="root", kind="token")
        )
        tokens = Tokens(parts.projections, parts.clock)
        made = {team: (await tokens.create("ann", ROLES, namespaces=(team,)))[0] for team in SECRETS}
        async with (
            serving(parts, any_port=("server.port",)) as url,
            httpx.AsyncClient(base_url=url, timeout=DEADLINE) as client,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            teams = Teams(tocsin, client, Stub(channel, compiled), made)
            for team in SECRETS:
                answer = await teams.register(team, f"{team}.build", f"/hooks/{team}/git", schedule="0 3 1 1 *")
                assert answer.status_code == 201, answer.text
            yield teams


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for team, secret in SECRETS.items():
        monkeypatch.setenv(f"{team.upper()}_SECRET", secret)


async def test_webhooks_of_teams_stay_apart(nats_url: str, tmp_path: Path, compiled: Path) -> None:
    async with two_teams(nats_url, tmp_path, compiled) as teams:
        # The path of the other team is taken neither as it is written, nor in another spelling, nor beside it.
        paths = ["/hooks/billing/git", "/hooks/billing/new", "/hooks/billing/deep/x", "/hooks/payments", "/hooks/git"]
        paths += ["/hooks/payments/../billing/git", "/hooks//billing/git", "/hooks/payments/%2e%2e/billing/git"]
        before = await teams.everything()
        for path in paths:
            answer = await teams.register("payments", "payments.theft", path)
            assert (answer.status_code, "billing.build" in answer.text) == (422, False), (path, answer.text)
        answer = await teams.register("payments", "billing.build", "/hooks/payments/x")
        assert answer.status_code == 403
        # A namespace of no team, and a name without one, are not a way around.
        for job in ("theft", "Payments.theft", "other.theft"):
            assert (await teams.register("payments", job, "/hooks/billing/git")).status_code in {403, 422}
        assert await teams.everything() == before
        # A request starts the job of its path, and only if the team of the path signed it.
        assert await teams.push("/hooks/billing/git", "payments", "d1") == 401
        assert await teams.push("/hooks/payments/%2e%2e/billing/git", "payments", "d1") == 401
        assert await teams.push("/hooks/payments/git", "payments", "d1") == 202
        await teams.tocsin.until(partial(is_empty, teams.tocsin))
        await teams.tocsin.ended("payments.build", Admitted)
        assert await teams.tocsin.of_executions("billing.build", Admitted) == []
        # A deleted job leaves its path to its own team alone.
        gone = await teams.client.delete("/v1/jobs/billing.build", headers=teams.headers("billing"))
        assert gone.status_code in {200, 204}
        assert (await teams.register("payments", "payments.theft", "/hooks/billing/git")).status_code == 422
        assert (await teams.register("billing", "billing.next", "/hooks/billing/git")).status_code == 201


async def test_grpc_shows_and_changes_the_own_team(nats_url: str, tmp_path: Path, compiled: Path) -> None:
    async with two_teams(nats_url, tmp_path, compiled) as teams, asyncio.timeout(DEADLINE):
        stub, pb = teams.stub, teams.stub.pb
        for team in SECRETS:
            await stub.TriggerJob(pb.TriggerJobRequest(name=f"{team}.build"), metadata=bearer(teams.tokens[team]))
            await teams.tocsin.ended(f"{team}.build", Admitted)
        [theirs] = await teams.tocsin.of_executions("billing.build", Admitted)
        mine = {"metadata": bearer(teams.tokens["payments"])}
        before = await teams.everything()

        listed = await stub.ListJobs(pb.ListJobsRequest(), **mine)
        status = await stub.GetSchedulerStatus(pb.GetSchedulerStatusRequest(), **mine)
        assert [job.name for job in listed.jobs] == [job.job_name for job in status.jobs] == ["payments.build"]
        for token in ("billing", "billing.", "billing.build", "billing.build0"):
            page = await stub.ListJobs(pb.ListJobsRequest(page_token=token), **mine)
            assert [job.name for job in page.jobs] == ["payments.build"]

        async def recorded() -> bool:
            page = await stub.ListExecutions(pb.ListExecutionsRequest(), **mine)
            assert {run.job for run in page.executions} <= {"payments.build"}
            return bool(page.executions)

        await teams.tocsin.until(recorded)
        for job in ("billing.build", "billing.*", "*", "billing.none"):
            page = await stub.ListExecutions(pb.ListExecutionsRequest(job=job), **mine)
            assert len(page.executions) == 0
        # What is of the other team is refused in the same words as what does not exist.
        for method, request in {
            "GetJob": pb.GetJobRequest,
            "TriggerJob": pb.TriggerJobRequest,
            "PauseJob": pb.SwitchJobRequest,
            "ResumeJob": pb.SwitchJobRequest,
        }.items():
            refusals = [
                await refusal(getattr(stub, method), request(name=name), **mine)
                for name in ("billing.build", "billing.none")
            ]
            assert refusals[0] == refusals[1], method
            assert refusals[0][0] in {STATUS.NOT_FOUND, STATUS.PERMISSION_DENIED}
        cancel = pb.CancelExecutionRequest(execution_id=theirs.execution_id)
        assert await refusal(stub.CancelExecution, cancel, **mine) == (STATUS.NOT_FOUND, "not-found")
        assert await teams.everything() == before


async def test_grpc_streams_events_of_the_own_team(nats_url: str, tmp_path: Path, compiled: Path) -> None:
    async with two_teams(nats_url, tmp_path, compiled) as teams, asyncio.timeout(DEADLINE):
        stub, pb = teams.stub, teams.stub.pb
        mine = {"metadata": bearer(teams.tokens["payments"])}
        everything = stub.WatchEvents(pb.WatchEventsRequest(after="0.0"), **mine)
        named = stub.WatchEvents(pb.WatchEventsRequest(after="0.0", job="billing.build"), **mine)
        live = stub.WatchEvents(pb.WatchEventsRequest(), **mine)
        await live.initial_metadata()
        reading = asyncio.create_task(named.read())
        for team in ("billing", "payments"):
            await stub.TriggerJob(pb.TriggerJobRequest(name=f"{team}.build"), metadata=bearer(teams.tokens[team]))
            await teams.tocsin.ended(f"{team}.build", Admitted)
        for call, types in ((everything, {"defined", "dispatched"}), (live, {"dispatched"})):
            seen = set[str]()
            while not types <= seen:
                event = await call.read()
                assert event.event["job"] == "payments.build", event
                assert "billing" not in str(event)
                seen.add(event.type)
            call.cancel()
        # A token without a namespace sees both.
        free = Tokens(teams.tocsin.installation.projections, teams.tocsin.installation.clock)
        token, _ = await free.create("root", (Role.VIEWER,))
        watch = stub.WatchEvents(pb.WatchEventsRequest(after="0.0"), metadata=bearer(token))
        jobs = set[str]()
        while jobs < {"payments.build", "billing.build"}:
            jobs.add((await watch.read()).event["job"])
        watch.cancel()
        # Streams that were opened later have their events. That of the other team's job has none, or is refused.
        later = stub.WatchEvents(pb.WatchEventsRequest(after="0.0"), **mine)
        while (await later.read()).type != "dispatched":
            pass
        later.cancel()
        if reading.done():
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                reading.result()
            assert caught.value.code() in {STATUS.NOT_FOUND, STATUS.PERMISSION_DENIED}
        named.cancel()
        reading.cancel()
