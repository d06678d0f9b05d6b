"""Servers that a header of an outsider's message stops, as `docs/internals/boundary.md` says."""

import json
from pathlib import Path
from typing import Final

import nats
import nats.errors
import pytest
from nats.aio.client import Client

from tests.security.installations import PASSWORD
from tests.system.chaos.installations import AGENT, installed

SUBJECTS: Final = {
    "public": "cron.trigger.job",
    f"worker-{AGENT}": "tocsin.0.report.job.id.completed.main.1.0000000000000000.1",
}
"""A subject under which each user may store a message."""
AFFECTED_FROM: Final = (2, 14)
"""The first version of nats-server that stops. When a later one does not, correct this and the documentation."""
PATIENCE_S: Final = 5.0


async def is_stored(client: Client, subject: str) -> bool:
    try:
        reply = await client.request(subject, b"{}", timeout=PATIENCE_S)
    except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
        return False
    return "error" not in json.loads(reply.data)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("user", SUBJECTS)
async def test_wrong_message_id_stops_known_servers(user: str, tmp_path: Path) -> None:
    async with installed(tmp_path, 3, accounts=True) as (_, cluster):
        client = await nats.connect(cluster.url.split(","), user=user, password=PASSWORD, inbox_prefix=f"_INBOX_{user}")
        assert await is_stored(client, SUBJECTS[user])
        await client.publish(SUBJECTS[user], b"{}", headers={"Nats-Expected-Last-Msg-Id": "one"})
        version = client.connected_server_version
        assert await is_stored(client, SUBJECTS[user]) is ((version.major, version.minor) < AFFECTED_FROM)
        await client.close()
