"""`tocsin queues` as a user calls it."""

import json
from pathlib import Path
from typing import Any

from tests.services.health.test_status import program
from tests.system.running import running
from tocsin import Context, Worker

QUEUES = {"teams": {"transport": "matched"}, "outside": {"transport": "mq"}}


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
            "taken": 0,
            "agents": ["team-1"],
            "functions": ["load"],
            "waiting_functions": {"mail/send": 1},
            "jobs": ["waits"],
            "paused": None,
            "purged": None,
            "purging": 0,
        }
        assert (found["default"]["transport"], found["default"]["jobs"]) == ("matched", ["plain"])
        assert (found["outside"]["transport"], found["outside"]["taken"]) == ("mq", 0)
        assert (found["heavy"]["transport"], found["heavy"]["waiting"]) == (None, None)

        table = (await program(tocsin.settings, "queues", "list")).stdout
        assert "not configured" in table
        assert "'default'" in table  # no agent serves it
        page = (await program(tocsin.settings, "queues", "show", "teams")).stdout
        assert "mail/send 1" in page
        assert "team-1" in page
        unknown = await program(tocsin.settings, "queues", "show", "team", "-o", "json")
        error = json.loads(unknown.stderr)["error"]
        assert (unknown.returncode, error["error_code"], "'teams'" in error["message"]) == (3, "not-found", True)
