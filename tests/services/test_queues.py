"""`tocsin queues` as a user calls it."""

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.services.health.test_status import program
from tests.system.running import running
from tocsin import Context, Worker

QUEUES = {
    "teams": {"transport": "matched", "concurrency": 5, "rate": {"limit": 60, "burst": 10}},
    "outside": {"transport": "mq"},
}


async def test_every_queue_is_listed_with_its_tasks(nats_url: str, tmp_path: Path) -> None:
    worker = Worker(queues=["teams"], name="team-1")

    @worker.task("load")
    async def load(_: Context) -> None: ...

    async with running(nats_url, tmp_path, worker=worker, queues=QUEUES) as tocsin:
        await tocsin.apply({"name": "waits", "function": "mail/send", "queue": "teams"})
        await tocsin.apply({"name": "plain", "function": "f"})
        await tocsin.apply({"name": "foreign", "function": "f", "queue": "outside"})
        await tocsin.apply({"name": "lost", "function": "f", "queue": "heavy"})
        for job in ("waits", "plain", "foreign"):
            await tocsin.trigger(job)

        async def listed() -> dict[str, Any]:
            answer = json.loads((await program(tocsin.settings, "queues", "list", "-o", "json")).stdout)
            found = {queue["name"]: queue for queue in answer}
            waiting = [found[name]["waiting"] for name in ("teams", "default", "outside")]
            return found if waiting == [1, 1, 1] and found["teams"]["agents"] else {}

        found = await tocsin.until(listed)
        assert all(found[name].pop("oldest") for name in ("teams", "default", "outside"))
        assert found["teams"] == {
            "name": "teams",
            "transport": "matched",
            "waiting": 1,
            "handed_over": None,
            "taken": 0,
            "agents": ["team-1"],
            "functions": ["load"],
            "waiting_functions": {"mail/send": 1},
            "jobs": ["waits"],
            "paused": None,
            "purged": None,
            "purging": 0,
            "concurrency": 5,
            "rate": "60 in 1m, 10 at once",
            "held_by": None,
            "held_back": {"waiting": 0, "groups": []},
        }
        assert (found["default"]["transport"], found["default"]["jobs"]) == ("matched", ["plain"])
        assert (found["outside"]["transport"], found["outside"]["taken"]) == ("mq", 0)
        assert (found["heavy"]["transport"], found["heavy"]["waiting"]) == ("matched", None)

        table = (await program(tocsin.settings, "queues", "list")).stdout
        assert all(f"{name!r}" in table for name in ("default", "heavy"))  # no agent serves them
        page = (await program(tocsin.settings, "queues", "show", "teams")).stdout
        assert "mail/send 1" in page
        assert "team-1" in page
        unknown = await program(tocsin.settings, "queues", "show", "team", "-o", "json")
        error = json.loads(unknown.stderr)["error"]
        assert (unknown.returncode, error["error_code"], "'teams'" in error["message"]) == (3, "not-found", True)


async def test_limits_that_hold_back_tasks_are_shown(nats_url: str, tmp_path: Path) -> None:
    worker = Worker(queues=["teams"], name="team-1")
    done = asyncio.Event()

    @worker.task("load")
    async def load(_: Context) -> None:
        await done.wait()

    async with running(nats_url, tmp_path, worker=worker, queues=QUEUES) as tocsin:
        limit = {"limit": 1, "key": "input.customer"}
        job = {"name": "load", "function": "load", "queue": "teams", "overlap_policy": "allow", "concurrency": limit}
        await tocsin.apply({**job, "input": {"customer": 42}})
        for _ in range(3):
            await tocsin.trigger("load")

        async def page() -> str:
            shown = (await program(tocsin.settings, "queues", "show", "teams")).stdout
            return shown if "2 by limit" in shown else ""

        shown = await tocsin.until(page)
        assert "2 by limit 1 of input.customer=42 of job load (1 run)" in shown
        assert "held back  2" in shown
        done.set()
