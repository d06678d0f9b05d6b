"""The blocking client: from many threads, interrupted, forked and closed."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.client.conftest import Site, in_thread
from tests.system.running import DEADLINE
from tocsin import Client, SyncClient
from tocsin.client import ClientClosed, InvalidArgument, RunFailed, WrongContext
from tocsin.client.loop_thread import LoopThread
from tocsin.ports import ApiUnavailable, Unreachable
from tocsin.settings import Settings


async def test_blocking_calls_have_the_same_answers(site: Site, transport: str) -> None:
    def use() -> None:
        with site.blocking(transport) as client:
            run = client.trigger("echo", {"n": 1})
            assert run.result(DEADLINE) == {"n": 1}
            assert client.run(run.execution_id).status() == "completed"
            assert [type(fact.message).__name__ for fact in run.events()][-1] == "Completed"
            with pytest.raises(RunFailed):
                client.trigger("fail").result(DEADLINE)
            assert client.pause("echo")
            assert client.job("echo").status == "paused"
            assert client.resume("echo")
            assert "echo" in [job.name for job in client.jobs()]
            client.remove("echo")

    await in_thread(use)


async def test_many_threads_share_a_client(site: Site, transport: str) -> None:
    def use() -> list[Any]:
        with site.blocking(transport) as client, ThreadPoolExecutor(8) as pool:
            client.apply([{"name": "many", "function": "echo", "overlap_policy": "allow"}])

            def one(number: int) -> Any:  # noqa: ANN401 - JSON
                return client.trigger("many", {"n": number}).result(DEADLINE)

            return list(pool.map(one, range(24)))

    assert await in_thread(use) == [{"n": number} for number in range(24)]


async def test_closing_ends_calls_of_other_threads(site: Site, transport: str) -> None:
    client = site.blocking(transport)
    ended: list[Exception] = []

    def wait() -> None:
        try:
            client.trigger("hold").result()
        except ClientClosed as error:
            ended.append(error)

    await in_thread(client.__enter__)
    thread = threading.Thread(target=wait)
    thread.start()
    await site.functions.started.wait()
    await in_thread(client.close)
    await in_thread(thread.join)
    assert len(ended) == 1
    for call in (client.jobs, client.close, client.close):
        if call == client.jobs:
            with pytest.raises(ClientClosed):
                await in_thread(call)
        else:
            await in_thread(call)


async def test_forked_process_gets_an_error(site: Site) -> None:
    def use() -> int:
        with site.blocking("http") as client:
            client.jobs()
            child = os.fork()
            if not child:
                os._exit(_code_of(client.jobs))
            _, status = os.waitpid(child, 0)
            assert client.jobs()
            return os.waitstatus_to_exitcode(status)

    assert await in_thread(use) == 0


def _code_of(call: Callable[[], object]) -> int:
    try:
        call()
    except WrongContext:
        return 0
    return 1


async def test_other_event_loop_gets_an_error(site: Site) -> None:
    async with site.client("http") as client:
        with pytest.raises(WrongContext, match="another event loop"):
            await in_thread(lambda: asyncio.run(client.jobs()))
        with pytest.raises(WrongContext):
            await in_thread(client.executions)
        assert await client.jobs()


@pytest.mark.parametrize("make", [Client, SyncClient])
def test_wrong_arguments_are_refused(make: Callable[..., object]) -> None:
    for arguments, name in (
        ({"nats": "nats://a", "url": "http://b"}, "url"),
        ({"url": "tocsin.example.com"}, "url"),
        ({"token": "secret"}, "token"),
        ({"operator": object(), "url": "http://b"}, "operator"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            make(**arguments)
        assert caught.value.argument == name
        assert "secret" not in str(caught.value)


def test_client_that_is_not_open_says_so() -> None:
    with pytest.raises(ClientClosed, match="is not open"):
        SyncClient(url="http://127.0.0.1:1").jobs()
    with pytest.raises(ClientClosed, match="is not open"):
        asyncio.run(Client(url="http://127.0.0.1:1").jobs())


def test_unreachable_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.client.client.CONNECT_TIMEOUT_S", 0.1)
    settings = Settings.model_validate({"nats": {"url": "nats://127.0.0.1:1"}})
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"), SyncClient(settings=settings):
        pass
    with SyncClient(url="http://127.0.0.1:1") as client, pytest.raises(ApiUnavailable, match=r"127\.0\.0\.1:1"):
        client.jobs()


def test_client_is_opened_once() -> None:
    client = SyncClient(url="http://127.0.0.1:1")
    with client:
        pass
    with pytest.raises(ClientClosed), client:
        pass


def test_client_that_a_signal_interrupts_is_closed() -> None:
    """A signal during the opening leaves the caller without the client, so it closes itself."""
    interrupted, closed, caller = threading.Event(), threading.Event(), threading.get_ident()

    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        signal.pthread_kill(caller, signal.SIGINT)
        await asyncio.to_thread(interrupted.wait, DEADLINE)
        yield
        closed.set()

    thread = LoopThread(slow())
    with pytest.raises(KeyboardInterrupt):
        thread.open()
    interrupted.set()
    assert closed.wait(DEADLINE)
