"""Servers that a header of an outsider's message stops, and the screener that keeps the header away.

`docs/internals/boundary.md` describes both.
"""

import json
from pathlib import Path
from typing import Final

import nats
import nats.errors
import pytest
from nats.aio.client import Client

from tests.security.installations import PASSWORD
from tests.system.chaos.installations import AGENT, PROGRAM, installed
from tests.system.processes import Site
from tocsin import bootstrap
from tocsin.adapters.nats.server.process import STOPS_AT_HEADERS, Version
from tocsin.domain.events import Requested

SUBJECTS: Final = {
    "public": "cron.trigger.job",
    f"public-{PROGRAM}": "cron.trigger.job",
    f"worker-{AGENT}": "tocsin.0.report.job.id.completed.main.1.0000000000000000.1",
}
"""A subject under which each user may store a message."""
HEADER: Final = {"Nats-Expected-Last-Msg-Id": "one"}
REPEATED: Final = 3
PATIENCE_S: Final = 5.0


async def is_stored(client: Client, subject: str) -> bool:
    try:
        reply = await client.request(subject, b"{}", timeout=PATIENCE_S)
    except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
        return False
    return "error" not in json.loads(reply.data)


async def connected(url: str, user: str) -> Client:
    """Connect as a user outside, with a plain client."""
    return await nats.connect(url.split(","), user=user, password=PASSWORD, inbox_prefix=f"_INBOX_{user}")


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("user", SUBJECTS)
async def test_wrong_message_id_stops_known_servers(user: str, tmp_path: Path) -> None:
    async with installed(tmp_path, 3, accounts=True) as (_, cluster):
        client = await connected(cluster.url, user)
        assert await is_stored(client, SUBJECTS[user])
        await client.publish(SUBJECTS[user], b"{}", headers=HEADER)
        assert await is_stored(client, SUBJECTS[user]) is (Version.of(client) < STOPS_AT_HEADERS)
        await client.close()


@pytest.mark.full
@pytest.mark.slow
async def test_screened_message_id_stops_nothing(tmp_path: Path) -> None:
    """Each user outside sends the header, with and without a reply; then triggers are stored and decided on."""
    async with installed(tmp_path, 3, accounts=True, screened=True) as (tocsin, cluster):
        tocsin.log_in("scheduler")
        tocsin.start(*bootstrap.STAGE_NAMES)
        await tocsin.apply({"name": "job", "function": "f", "overlap_policy": "allow"})
        for user, subject in SUBJECTS.items():
            client = await connected(cluster.url, user)
            await screened(tocsin, user)
            for _ in range(REPEATED):
                await client.publish(subject, b"{}", headers=HEADER)
                assert json.loads((await client.request(subject, b"{}", headers=HEADER, timeout=60)).data)["seq"]
            assert await is_stored(client, subject)
            await client.close()
        triggers = len(SUBJECTS.keys() & {"public", f"public-{PROGRAM}"}) * (2 * REPEATED + 1)
        await tocsin.ended("job", Requested, triggers)


async def screened(tocsin: Site, user: str) -> None:
    """Wait until a screener hears a user."""
    inspection = bootstrap.health_target(tocsin.installation).inspection

    async def is_heard() -> bool:
        return not await inspection.unheard([user])

    await tocsin.until(is_heard)
