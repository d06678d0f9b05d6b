"""No name, path or header reaches the subject of another job."""

import asyncio
from pathlib import Path
from urllib.parse import quote

import httpx
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.domain.given import admitted
from tests.history_files import history_url
from tests.http.conftest import LOCAL, World
from tests.properties import examples
from tocsin.adapters.sql.history import open_history
from tocsin.domain.events import Message, Recorded

EVENTS = "/v1/events"
RUN = "11111111-1111-7111-8111-111111111111"
AWKWARD = [
    "*",
    ">",
    "victim.>",
    "*.>",
    "..",
    "../victim",
    ".",
    "victim\x00",
    "victim*",
    "v?ctim",
    "vıctim",
    "VICTIM",
    "victim ",
    "victim\n",
    "$SYS",
    "victim/../victim",
    "%2e%2e",
    "victim%00",
    "_",
    "victim_",
    "\ud7ff",
    "🦉",
    "a" * 300,
]
NAMES = st.one_of(
    st.sampled_from(AWKWARD),
    st.text(alphabet="victm.*>_-/\\%$\x00 \n", min_size=1, max_size=20),
    st.text(min_size=1, max_size=20),
)


async def everything(world: World) -> list[Recorded[Message]]:
    """All that is stored."""
    found = [
        await world.log.read(scope, limit=10_000) for scope in ("ledger.>", "trigger.>", "execution.>", "dead-letter.>")
    ]
    return [recorded for some in found for recorded in some]


@given(name=NAMES, encoded=st.booleans())
@example(name="*", encoded=True)
@example(name=">", encoded=False)
@settings(
    max_examples=examples(60), deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
def test_what_is_no_name_reaches_nothing(tmp_path: Path, name: str, *, encoded: bool) -> None:
    asyncio.run(_try(tmp_path, name, encoded=encoded))


async def _try(folder: Path, name: str, *, encoded: bool) -> None:
    written = quote(name, safe="" if encoded else "*>$!_-.~/")
    async with open_history(history_url(folder)) as history:
        world = World(folder, history)
        await world.given(name="victim", function="a.b")
        await world.log.append(admitted().changed(job="victim", execution_id=RUN), expect=0)
        before = await everything(world)
        requests = [
            ("GET", f"/v1/jobs/{written}", None),
            ("PUT", f"/v1/jobs/{written}", {"schedule": "@hourly", "function": "evil"}),
            ("DELETE", f"/v1/jobs/{written}", None),
            ("POST", f"/v1/jobs/{written}/trigger", {}),
            ("POST", f"/v1/jobs/{written}/pause", {}),
            ("GET", f"/v1/executions/{written}", None),
            ("GET", f"/v1/executions/{written}/events", None),
            ("POST", f"/v1/executions/{written}/cancel", {}),
            ("GET", f"/v1/dead-letters/{written}", None),
            ("POST", f"/v1/dead-letters/{written}/replay", {}),
            ("PATCH", f"/v1/dead-letters/{written}", {}),
            ("DELETE", f"/ojs/v1/cron/{written}", None),
            ("PATCH", f"/ojs/v1/cron/{written}", {"enabled": False}),
            ("POST", "/v1/jobs", {"name": name, "schedule": "@hourly", "function": "evil"}),
            ("POST", "/ojs/v1/cron", {"name": name, "cron": "@hourly", "type": "evil"}),
        ]
        for method, path, body in requests:
            if httpx.URL(LOCAL + path).path == EVENTS:
                continue  # clients resolve dots themselves, and that answer has no end
            answer = await world.ask(method, path, body)
            assert answer.status_code < 500, (method, path, answer.text)
        after = await everything(world)
        known = {recorded.subject for recorded in before}
        stored = [recorded for recorded in after if recorded not in before]
        # A valid but unusual name makes a job of its own; the others stay unchanged.
        assert not {recorded.subject for recorded in stored} & known
        assert all(getattr(recorded.message, "job", None) != "victim" for recorded in stored)
        assert not await world.log.read("trigger.victim.>")
