"""Workers, in accounts of their own: everything that a worker does, and nothing that it must not do."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final

import pytest
from nats.aio.msg import Msg
from pydantic import JsonValue, ValidationError

from tests.security import installations
from tests.security.installations import NOT_RESERVED, connected, installed, reached_names
from tests.security.server import DEADLINE, Server
from tests.security.test_outside_accounts import ASKED, HEADERS, REPLIES, everything, victim
from tests.security.test_roles import everybody
from tests.stored_events import StoredEvents
from tocsin import Context, Worker, bootstrap
from tocsin.adapters.nats.admin.permissions import Permissions
from tocsin.adapters.nats.agents import NatsAgentChannel
from tocsin.bootstrap.nats_roles import permissions
from tocsin.domain.agent import HoldList
from tocsin.domain.events import (
    AgentEnded,
    AgentRegistered,
    Cancelled,
    Completed,
    ExecutionFact,
    Released,
    Report,
    Started,
)
from tocsin.engine import agent_memory
from tocsin.ports import HandOver, NotAllowed
from tocsin.services.agents import AgentRegistry, change_grants
from tocsin.services.operations import execution_requests
from tocsin.services.operations.execution_output import read_output
from tocsin.services.operations.lookup import find
from tocsin.settings import Settings, SettingsError
from tocsin.subjects import MATCHER

ID: Final = "01890f3e-0000-7000-8000-000000000001"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with installed(tmp_path_factory.mktemp("workers")) as running:
        yield running


@pytest.fixture(scope="module", params=[False, True], ids=["direct", "screened"])
def either(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a server whose workers publish into streams, or to the screener."""
    with installed(tmp_path_factory.mktemp("either"), screened=request.param) as running:
        yield running


FLOOD: Final = 20
OTHER: Final = "01890f3e-0000-7000-8000-000000000002"


def test_worker_may_use_no_jetstream() -> None:
    rules = permissions(Settings())["worker"]
    assert not [subject for subject in rules.publish if subject.startswith("$")]
    heard = {"tocsin.task.*.*", "tocsin.task.*.*.run", "tocsin.task.*.*.end", "tocsin.agents"}
    assert set(rules.subscribe) == heard
    assert rules.outside is not None
    assert set(rules.outside.requests) == set(rules.publish)
    assert set(rules.outside.hears) == heard


def test_account_of_an_agent_imports_its_name_only() -> None:
    rules = permissions(Settings.model_validate({"agents": {"accounts": ["mail"]}}))
    outside = rules["worker-mail"].outside
    assert outside is not None
    assert "tocsin.agent.mail.*.hold" in outside.requests
    assert set(outside.hears) == {
        *("tocsin.task.mail.*", "tocsin.task.mail.*.run", "tocsin.task.mail.*.end"),
        "tocsin.agents",
    }


@pytest.mark.parametrize("accounts", [["mail", "mail"], ["Mail"], ["a.b"], ["*"], [""]])
def test_names_of_accounts_are_checked(accounts: list[str]) -> None:
    with pytest.raises(ValidationError, match="accounts"):
        Settings.model_validate({"agents": {"accounts": accounts}})


@pytest.mark.parametrize(
    ("user", "name", "text"),
    [
        ("worker-mail", "other", "write `Worker(name='mail')`"),
        ("worker", "mail", "only the NATS user worker-mail may use the agent's name mail"),
    ],
)
async def test_wrong_name_of_an_agent_is_refused(
    secured: Server, tmp_path: Path, user: str, name: str, text: str
) -> None:
    async with connected(secured, tmp_path, user) as installation:
        with pytest.raises(SettingsError, match=re.escape(text)):
            async with bootstrap.worker_connection(installation, Worker(name=name).options):
                pytest.fail("the worker started")


@pytest.mark.parametrize("verb", ["INFO", "STREAM.NAMES", "STREAM.INFO.TOCSIN_LOG", "DIRECT.GET.TOCSIN_PROGRESS"])
async def test_worker_is_refused_every_request(secured: Server, tmp_path: Path, verb: str) -> None:
    async with connected(secured, tmp_path, "worker") as installation:
        with pytest.raises(NotAllowed):
            await installation.connection.request(f"$JS.API.{verb}")


async def test_worker_does_everything_without_jetstream(
    either: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_WORKER", "a-secret-value")
    worker, held, stopped = Worker(name="all-1", secrets=["OF_THE_WORKER"]), asyncio.Event(), asyncio.Event()
    read: list[JsonValue] = []
    secrets: list[JsonValue] = []

    @worker.task("load")
    async def load(context: Context, *, secret: str) -> None:
        read.append(context.last_heartbeat)
        secrets.append(secret)
        context.logger.info("loading", secret=secret)
        await context.progress(0.5, "half")
        await context.heartbeat({"row": 1_200})
        if context.attempt == 1:
            raise ConnectionError("away")

    @worker.task("hold")
    async def hold(_: Context) -> None:
        held.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    before = len(either.log)
    async with everybody(either, tmp_path, worker) as tocsin:
        retry = {"max_attempts": 2, "initial_delay": 0.1}
        await tocsin.apply(
            {"name": "etl", "function": "load", "retry": retry, "input": {"secret": "${env:OF_THE_WORKER}"}},
            {"name": "held", "function": "hold"},
        )
        await tocsin.trigger("etl")
        [completed] = await tocsin.ended("etl", Completed)
        assert (read, secrets) == ([None, {"row": 1_200}], ["a-secret-value"] * 2)

        async def lines() -> list[str]:
            output = await read_output(tocsin.log, await find(tocsin.log, completed.execution_id))
            return [line.text for line in output.lines] if output.progress and len(output.lines) == 2 else []

        assert await tocsin.until(lines) == ["loading secret=${env:OF_THE_WORKER}"] * 2

        await tocsin.trigger("held")
        [started] = await tocsin.ended("held", Started)
        await held.wait()
        await execution_requests.cancel(tocsin.log, started.execution_id, reason="enough")
        async with asyncio.timeout(tocsin.patience):
            await stopped.wait()
        await tocsin.ended("held", Cancelled)

        held.clear()
        await tocsin.trigger("held")
        await tocsin.ended("held", Started, 2)
        await held.wait()
        assert await AgentRegistry(tocsin.log, tocsin.installation.projections).drain("all-1")
        worker.stop()
        worker.stop()  # at once
        await tocsin.until(lambda: tocsin.facts("agent.all-1.*.ended", AgentEnded))
        [released] = await tocsin.ended("held", Released)
        assert released.reason == "handed_back"
        reports = (await StoredEvents.of(tocsin.log)).facts(Report)
        assert [recorded.message.worker for recorded in reports] == ["all-1", "all-1", MATCHER]
        assert await tocsin.of_executions("held", ExecutionFact)
    assert "Violation" not in either.log[before:]


async def test_worker_of_an_account_runs_its_tasks(either: Server, tmp_path: Path) -> None:
    worker, shared = Worker(name="mail", queues=["mail"]), Worker()
    worker.task("send")(lambda _: "sent")
    before = len(either.log)
    async with (
        everybody(either, tmp_path, shared) as tocsin,
        connected(either, tmp_path, "worker-mail") as mine,
        bootstrap.worker_connection(mine, worker.options) as connection,
    ):
        serving = asyncio.create_task(worker.serve(connection))
        await tocsin.apply({"name": "mailing", "function": "send", "queue": "mail"})
        await tocsin.trigger("mailing")
        await tocsin.ended("mailing", Completed)
        worker.stop()
        await serving
    assert "Violation" not in either.log[before:]


async def test_workers_of_a_team_get_its_tasks_alone(secured: Server, tmp_path: Path) -> None:
    """A worker names its queues itself, so the account limits its name, and the grant the queues of that name."""
    team, others = Worker(name="mail", queues=["payments.mail", "billing.mail"]), Worker(queues=["billing.mail"])
    ran = list[str]()

    @team.task("send")
    async def send(context: Context) -> None:
        ran.append(context.job)

    others.task("send")(lambda _: None)

    async with (
        everybody(secured, tmp_path, others) as tocsin,
        connected(secured, tmp_path, "worker-mail") as mine,
        bootstrap.worker_connection(mine, team.options) as connection,
    ):
        await change_grants(tocsin.log, "allow", "mail", ["payments.mail"], [])
        serving = asyncio.create_task(team.serve(connection))
        for job in ("payments.nightly", "billing.nightly"):
            await tocsin.apply({"name": job, "function": "send", "queue": f"{job.partition('.')[0]}.mail"})
        for _ in range(5):
            await tocsin.trigger("billing.nightly")
        await tocsin.trigger("payments.nightly")
        await tocsin.ended("payments.nightly", Completed)
        await tocsin.ended("billing.nightly", Completed)
        workers = {
            job: {fact.worker.partition(".")[0] for fact in await tocsin.of_executions(job, Started)}
            for job in ("payments.nightly", "billing.nightly")
        }
        team.stop()
        await serving
        await change_grants(tocsin.log, "allow", "mail", ["*"], [])  # as before: other tests share the server
    assert set(ran) == {"payments.nightly"}
    assert workers["payments.nightly"] == {"mail"}
    assert "mail" not in workers["billing.nightly"]


async def test_invented_agents_stop_no_other_account(
    secured: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of the shared account sends hold lists under more names and ids than there is room for."""
    for module in ("engine.hold_list_inbox", "stages.matcher.agents", "stages.agent_keeper.roster"):
        monkeypatch.setattr(f"tocsin.{module}.MAX_AGENTS", FLOOD // 2)
    worker, shared = Worker(name="mail", queues=["mail"]), Worker()
    worker.task("send")(lambda _: "sent")

    async def flood(channel: NatsAgentChannel) -> None:
        for number in count(1):
            for invented in range(FLOOD):
                agent_id = f"{ID[:-4]}{invented:04x}"
                await channel.announce(f"n{invented}", agent_id, b'{"number": %d, "mode": "enabled"}' % number)
            await asyncio.sleep(0.01)

    async with (
        everybody(secured, tmp_path, shared) as tocsin,
        connected(secured, tmp_path, "worker") as outside,
        connected(secured, tmp_path, "worker-mail") as mine,
    ):
        flooding = asyncio.create_task(flood(NatsAgentChannel(outside.connection, outside.names)))
        await tocsin.stored("agent.>", AgentRegistered, FLOOD // 2)
        async with bootstrap.worker_connection(mine, worker.options) as connection:
            serving = asyncio.create_task(worker.serve(connection))
            await tocsin.apply({"name": "posting", "function": "send", "queue": "mail"})
            await tocsin.trigger("posting")
            await tocsin.ended("posting", Completed)
            worker.stop()
            await serving
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)


async def test_large_hold_lists_stop_no_other_account(
    secured: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account of an agent invents processes with long hold lists, and uses up its own memory alone."""
    monkeypatch.setattr(agent_memory, "MAX_BYTES_PER_NAME", 300_000)
    worker = Worker()
    worker.task("send")(lambda _: "sent")
    invented = HoldList(
        number=1,
        mode="enabled",
        queues=tuple(f"q{n}" for n in range(100)),
        functions=tuple(f"{n}" + "x" * 200 for n in range(400)),
        held=tuple(f"job.{n}.main.1" for n in range(1_000)),
        max_concurrent_jobs=1_000,
    ).model_dump_json()

    async with (
        everybody(secured, tmp_path, worker) as tocsin,
        connected(secured, tmp_path, "worker-mail") as mine,
    ):
        channel = NatsAgentChannel(mine.connection, mine.names)
        await tocsin.apply({"name": "sending", "function": "send", "overlap_policy": "allow"})
        for number in range(FLOOD, 3 * FLOOD):
            await channel.announce("mail", f"{ID[:-4]}{number:04x}", invented.encode())
        await mine.connection.client.flush()
        for _ in range(2):
            await tocsin.trigger("sending")
        await tocsin.ended("sending", Completed, 2)
        registered = Counter(fact.message.name for fact in await tocsin.facts("agent.>", AgentRegistered))
        assert registered["mail"] < FLOOD


@pytest.fixture(scope="module")
def boundless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a server whose users outside have no rules but those of their accounts."""

    def without_rules(settings: Settings) -> dict[str, Permissions]:
        return {
            name: replace(rules, publish=(">",), subscribe=(">",), deny_publish=())
            if rules.outside is not None
            else rules
            for name, rules in permissions(settings).items()
        }

    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(installations, "permissions", without_rules)
            running = stack.enter_context(installed(tmp_path_factory.mktemp("boundless")))
        yield running


@pytest.mark.parametrize("headers", HEADERS, ids=lambda headers: next(iter(headers), "plain"))
@pytest.mark.parametrize("role", ["worker", "worker-mail"])
async def test_account_alone_protects_the_streams(
    role: str, headers: dict[str, str], boundless: Server, tmp_path: Path
) -> None:
    async with victim(boundless, tmp_path) as tocsin, connected(boundless, tmp_path, role) as outside:
        before = await everything(tocsin.installation, role)
        client = outside.connection.client
        for subject in (*REPLIES, *ASKED[role]):
            await client.publish(subject, b"{}", headers=headers)
            for reply in REPLIES if subject in ASKED[role] else ():
                await client.publish(subject, b"{}", reply=reply, headers=headers)
        await client.flush()
        await client.request(ASKED[role][0], b"{}", timeout=DEADLINE)  # all earlier messages were handled
        assert await everything(tocsin.installation, role) == before


REQUESTS: Final = [
    f"$JS.API.{verb}"
    for stream in ("TOCSIN_LEDGER", "TOCSIN_LOG", "KV_tocsin_tokens")
    for verb in (
        *(f"STREAM.{what}.{stream}" for what in ("INFO", "CREATE", "UPDATE", "PURGE", "DELETE", "SNAPSHOT", "RESTORE")),
        *(f"STREAM.{what}.{stream}" for what in ("MSG.GET", "MSG.DELETE", "LEADER.STEPDOWN")),
        *(f"CONSUMER.{what}.{stream}" for what in ("CREATE", "LIST", "NAMES")),
        *(f"CONSUMER.{what}.{stream}.planner" for what in ("INFO", "CREATE", "DELETE", "MSG.NEXT", "PAUSE")),
        *(f"DIRECT.GET.{stream}", f"DIRECT.GET.{stream}.tocsin.0.ledger.victim.defined"),
    )
] + ["$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.SERVER.REMOVE"]
"""Requests to JetStream that an outsider may send to no stream of the installation."""


@pytest.mark.parametrize("role", ASKED)
async def test_account_alone_answers_no_request(role: str, boundless: Server, tmp_path: Path) -> None:
    """No answer comes to the outsider, and none into a stream of the installation."""
    async with victim(boundless, tmp_path) as tocsin, connected(boundless, tmp_path, role) as outside:
        before, client = await everything(tocsin.installation, role), outside.connection.client
        own = await client.subscribe(client.new_inbox())
        for request in REQUESTS:
            for reply in (own.subject, *REPLIES):
                await client.publish(request, b'{"seq":1}', reply=reply)
        await client.flush()
        await client.request(ASKED[role][0], b"{}", timeout=DEADLINE)  # all earlier messages were handled
        while own.pending_msgs:
            answer = await own.next_msg(timeout=DEADLINE)
            assert answer.data == b"" or "error" in json.loads(answer.data), answer  # empty: nothing hears the request
        assert await everything(tocsin.installation, role) == before


async def test_account_binds_the_name_of_an_agent(boundless: Server, tmp_path: Path) -> None:
    held: list[tuple[str, str]] = []
    heard: list[str] = []
    async with (
        connected(boundless, tmp_path, "matcher") as stage,
        connected(boundless, tmp_path, "worker-mail") as outside,
    ):
        channel = NatsAgentChannel(stage.connection, stage.names)
        client = outside.connection.client

        async def note(message: Msg) -> None:
            heard.append(message.subject)

        await client.subscribe("tocsin.>", cb=note)
        await client.flush()
        async with channel.hold_lists(lambda name, agent_id, _: held.append((name, agent_id))):
            await stage.connection.client.flush()
            forger = NatsAgentChannel(outside.connection, outside.names)
            async with asyncio.timeout(DEADLINE):
                while not held or "tocsin.agents" not in heard:  # a new listener may not count yet in the other account
                    for name in ("other", "billing", "mail"):
                        await forger.announce(name, ID, b"{}")
                    await channel.hand_over([HandOver("other", ID, 1, b"1"), HandOver("mail", ID, 2, b"2")])
                    await channel.send_ends("other", ID, b"{}")
                    await channel.send_ends("mail", ID, b"{}")
                    await channel.call_roll()
                    await asyncio.sleep(0.1)
    assert set(held) == {("mail", ID)}
    own = {subject for subject in heard if not subject.startswith("tocsin.agent.")}  # without what it published itself
    assert own == {f"tocsin.task.mail.{ID}.run", f"tocsin.task.mail.{ID}.end", "tocsin.agents"}


@pytest.mark.parametrize("has_rules", [True, False], ids=["rules", "no-rules"])
async def test_shared_user_cannot_use_a_reserved_name(
    *, has_rules: bool, secured: Server, boundless: Server, tmp_path: Path
) -> None:
    running = secured if has_rules else boundless
    async with connected(running, tmp_path, "scheduler") as stage, connected(running, tmp_path, "worker") as shared:
        assert await reached_names(stage, shared) == (NOT_RESERVED, NOT_RESERVED)


async def test_absent_process_is_known_across_accounts(secured: Server, tmp_path: Path) -> None:
    absences: list[tuple[str, int]] = []
    tasks: list[bytes] = []
    async with (
        connected(secured, tmp_path, "matcher") as stage,
        connected(secured, tmp_path, "worker-mail") as outside,
    ):
        channel = NatsAgentChannel(stage.connection, stage.names)
        agent = NatsAgentChannel(outside.connection, outside.names)
        assert not await agent.is_heard("mail", ID, b"{}", wait=DEADLINE)
        async with (
            channel.absences(lambda agent_id, number: absences.append((agent_id, number))),
            agent.tasks("mail", ID, tasks.append),
        ):
            await outside.connection.client.flush()
            async with asyncio.timeout(DEADLINE):
                # A listener counts in another account a moment later, and still counts a moment after it left.
                while not (tasks and absences == [(OTHER, 2)]):
                    absences.clear()
                    await channel.hand_over([HandOver("mail", ID, 1, b"1"), HandOver("mail", OTHER, 2, b"2")])
                    await asyncio.sleep(0.1)
    assert set(tasks) == {b"1"}
