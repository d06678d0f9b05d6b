"""The worker as an agent: what it announces, and what it does on command."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.worker.given import FUNCTION, Bench
from tests.worker.test_session import Serving, ids
from tocsin import Context, Worker, subjects
from tocsin.domain.agent import HoldList
from tocsin.subjects import LAYOUT
from tocsin.worker import Connection
from tocsin.worker.agent import WrongLayout


class AgentBench(Bench):
    """A bench whose workers are agents."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[str, str, dict[str, Any]]] = []
        self.shards: tuple[str, ...] | None = None

    def connection(self) -> Connection:
        return Connection(self.log, self.channel, self.clock, version="9.9", shards=self.shards)

    def hear(self, name: str, agent_id: str, body: bytes) -> None:
        self.held.append((name, agent_id, json.loads(body)))

    async def command(self, mode: str, **fields: object) -> None:
        name, agent_id, _ = self.held[-1]
        await self.channel.command(name, agent_id, json.dumps({"mode": mode, **fields}).encode())


@pytest.fixture
async def office() -> AsyncIterator[AgentBench]:
    bench = AgentBench()
    async with bench.matching():
        yield bench


async def until(serving: Serving, happened: Any) -> None:  # noqa: ANN401 - a function without arguments
    async def wait() -> None:
        while not happened():  # noqa: ASYNC110 - a message is received by a callback
            await asyncio.sleep(0)

    await serving.until(asyncio.ensure_future(wait()))


async def test_worker_announces_what_it_has(office: AgentBench) -> None:
    worker = Worker(name="mail-1", concurrency=4, labels={"zone": "a"})
    worker.task("b")(lambda _: None)
    worker.task("a")(lambda _: None)
    async with office.channel.hold_lists(office.hear):
        serving = Serving(office, worker)
        await until(serving, lambda: any(body["mode"] == "enabled" for _, _, body in office.held))
        await serving.stopped()
    names, agents = {name for name, _, _ in office.held}, {agent_id for _, agent_id, _ in office.held}
    first, last = office.held[0][2], office.held[-1][2]
    assert names == {"mail-1"}
    assert len(agents) == 1
    assert (first["mode"], first["functions"], first["queues"]) == ("starting", ["b", "a"], ["default"])
    assert (first["max_concurrent_jobs"], first["labels"], first["version"]) == (4, {"zone": "a"}, "9.9")
    assert last["ended"]
    numbers = [body["number"] for _, _, body in office.held]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize(
    ("code", "settings", "announced"),
    [
        ([], None, None),
        (["b", "a", "b"], None, ["b", "a"]),
        (["*"], None, ["*"]),
        (["a"], ("b",), ["b"]),
        (["a"], (), None),
    ],
)
async def test_worker_declares_its_shards(
    code: list[str], settings: tuple[str, ...] | None, announced: list[str] | None, office: AgentBench
) -> None:
    office.shards = settings
    async with office.channel.hold_lists(office.hear):
        serving = Serving(office, Worker(shards=code))
        await until(serving, lambda: office.held)
        await serving.stopped()
    assert [body.get("shards") for _, _, body in office.held] == [announced] * len(office.held)


@pytest.mark.parametrize("shard", ["A", "", "-a", "a.b", "a*", "a" * 65, "a\n"])
def test_wrong_id_of_a_shard_is_refused(shard: str) -> None:
    with pytest.raises(ValueError, match="shards"):
        Worker(shards=[shard])
    with pytest.raises(ValueError, match="shards"):
        HoldList(number=1, mode="enabled", shards=(shard,))


def test_number_of_declared_shards_is_limited() -> None:
    ids = [f"s{number}" for number in range(1_001)]
    assert len(Worker(shards=ids[:-1]).options.shards) == 1_000
    with pytest.raises(ValueError, match="1,001"):
        Worker(shards=ids)
    with pytest.raises(ValueError, match="shards"):
        HoldList(number=1, mode="enabled", shards=tuple(ids))
    with pytest.raises(TypeError, match="shards"):
        Worker(shards="s1")


async def test_id_is_new_at_each_start(office: AgentBench) -> None:
    worker = Worker(name="mail-1")
    async with office.channel.hold_lists(office.hear):
        for _ in range(2):
            before = len(office.held)
            serving = Serving(office, worker)
            await until(serving, lambda: len(office.held) > before)  # noqa: B023 - it is called in this round
            await serving.stopped()
    assert len({agent_id for _, agent_id, _ in office.held}) == 2


async def test_hold_list_names_the_held_tasks(office: AgentBench) -> None:
    worker = Worker(concurrency=2)
    go_on = asyncio.Event()

    @worker.task(FUNCTION)
    async def wait(_: Context) -> None:
        await go_on.wait()

    [task] = await office.given_tasks({"main": ()})
    async with office.channel.hold_lists(office.hear):
        serving = Serving(office, worker)
        await until(serving, lambda: office.held and office.held[-1][2].get("held"))
        assert office.held[-1][2]["held"] == [f"{subjects.token(task.job)}.{task.execution_id}.main.1"]
        go_on.set()
        await until(serving, lambda: not office.held[-1][2].get("held"))
        await serving.stopped()


async def test_worker_without_an_agent_keeper_works(office: AgentBench) -> None:
    worker = Worker()
    done = asyncio.Event()
    worker.task(FUNCTION)(lambda _: done.set())
    await office.given_task()
    serving = Serving(office, worker)
    await serving.until(done)
    await serving.stopped()


async def test_worker_works_after_its_connection_returns(office: AgentBench) -> None:
    worker = Worker()
    done = asyncio.Event()
    worker.task(FUNCTION)(lambda _: done.set())
    office.channel.connections = 0
    await office.given_task()
    serving = Serving(office, worker)
    clock = office.clock.monotonic()
    await until(serving, lambda: office.clock.monotonic() > clock + 5)
    office.channel.connections = 2
    await serving.until(done)
    await serving.stopped()


async def test_worker_of_a_disabled_name_takes_nothing(office: AgentBench) -> None:
    worker = Worker()
    ran = asyncio.Event()
    worker.task(FUNCTION)(lambda _: ran.set())
    await office.given_task()

    def answer(name: str, agent_id: str, body: bytes) -> None:
        office.hear(name, agent_id, body)
        if json.loads(body)["mode"] == "starting":
            answering.append(asyncio.ensure_future(office.command("disabled")))

    answering: list[asyncio.Future[None]] = []
    async with office.channel.hold_lists(answer):
        serving = Serving(office, worker)
        await until(serving, lambda: office.held and office.held[-1][2]["mode"] == "disabled")
        begin = len(office.held)
        await until(serving, lambda: len(office.held) > begin + 2)
        assert not ran.is_set()
        await office.command("enabled")
        await serving.until(ran)
        await serving.stopped()


async def test_draining_worker_finishes_and_takes_nothing_new(office: AgentBench) -> None:
    worker = Worker(concurrency=1)
    begun, go_on, ended = asyncio.Event(), asyncio.Event(), list[str]()

    @worker.task(FUNCTION)
    async def wait(context: Context) -> None:
        begun.set()
        await go_on.wait()
        ended.append(context.execution_id)

    first, second = ids(2)
    await office.given_tasks({"main": ()}, execution_id=first)
    async with office.channel.hold_lists(office.hear):
        serving = Serving(office, worker)
        await serving.until(begun)
        await until(serving, lambda: bool(office.held))
        await office.command("draining")
        await office.given_tasks({"main": ()}, execution_id=second)
        go_on.set()
        await until(serving, lambda: office.held[-1][2]["mode"] == "draining" and not office.held[-1][2].get("held"))
        await office.command("enabled")  # a late command: draining is final for a process
        begin = len(office.held)
        await until(serving, lambda: len(office.held) > begin + 2)
        assert ended == [first]
        await serving.stopped()
    assert office.held[-1][2]["ended"]


async def test_worker_announces_itself_after_a_reconnect(office: AgentBench) -> None:
    async with office.channel.hold_lists(office.hear):
        serving = Serving(office, Worker())
        await until(serving, lambda: len(office.held) > 1)
        office.channel.connections = 0
        lost = len(office.held)
        clock = office.clock.monotonic()
        await until(serving, lambda: office.clock.monotonic() > clock + 60)
        assert len(office.held) == lost
        office.channel.connections = 2
        await until(serving, lambda: len(office.held) > lost)
        await serving.stopped()


@pytest.mark.parametrize("body", [b"", b"no json", b"{}", b'{"mode": "lost"}', b"[" * 100_000])
async def test_hostile_command_changes_nothing(office: AgentBench, body: bytes) -> None:
    async with office.channel.hold_lists(office.hear):
        serving = Serving(office, Worker())
        await until(serving, lambda: len(office.held) > 1)
        name, agent_id, _ = office.held[-1]
        await office.channel.command(name, agent_id, body)
        begin = len(office.held)
        await until(serving, lambda: len(office.held) > begin)
        assert office.held[-1][2]["mode"] == "enabled"
        await serving.stopped()


@pytest.mark.parametrize("name", ["", "a.b", "a b", "*", "ä", "x" * 129])
def test_unsafe_name_is_refused(name: str) -> None:
    if name:
        with pytest.raises(ValueError, match="name: 1 to 128 letters"):
            Worker(name=name)
    else:
        assert Worker(name=name).options.name


def test_too_many_functions_do_not_stop_the_worker(office: AgentBench) -> None:
    worker = Worker()
    for number in range(501):
        worker.task(f"f{number}")(lambda _: None)

    async def works() -> None:
        async with office.channel.hold_lists(office.hear):
            serving = Serving(office, worker)
            clock = office.clock.monotonic()
            await until(serving, lambda: office.clock.monotonic() > clock + 30)
            await serving.stopped()

    asyncio.run(works())
    assert office.held == []


@pytest.mark.parametrize("is_at_start", [True, False])
async def test_worker_of_another_layout_ends(office: AgentBench, is_at_start: object) -> None:
    """The agent keeper says the layout of the streams, because a worker may not read their state."""
    worker = Worker()
    async with office.channel.hold_lists(office.hear):
        serving = Serving(office, worker)
        if is_at_start:
            await until(serving, lambda: office.held)
        else:
            await until(serving, lambda: office.held and office.held[-1][2]["mode"] == "enabled")
            await office.command("enabled", layout=LAYOUT)
            await until(serving, lambda: len(office.held) > 2)
        await office.command("enabled", layout=LAYOUT + 1)
        with pytest.raises(WrongLayout, match=f"layout {LAYOUT + 1}, and this worker needs layout {LAYOUT}"):
            await serving.ended()
    assert office.held[-1][2]["ended"] is True


async def test_long_names_of_held_tasks_are_left_out(office: AgentBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hold list that is too large would not be sent, and the agent be taken for lost."""
    monkeypatch.setattr("tocsin.domain.agent.MAX_HELD_BYTES", 100)
    worker, go_on = Worker(concurrency=5), asyncio.Event()

    @worker.task(FUNCTION)
    async def wait(_: Context) -> None:
        await go_on.wait()

    for id_ in ids(3):
        await office.given_tasks({"main": ()}, execution_id=id_)
    async with office.channel.hold_lists(office.hear):
        serving = Serving(office, worker)
        await until(serving, lambda: office.held and office.held[-1][2].get("held"))
        for _ in range(10):
            await until(serving, lambda: office.held[-1][2].get("held"))
        assert len(office.held[-1][2]["held"]) == 1
        go_on.set()
        await serving.stopped()
    assert len(await office.reports()) == 3
