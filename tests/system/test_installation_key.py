"""The installation key: a replica that does not know it yet is no proof of its absence."""

import json

import pytest

from tocsin.adapters.nats.admin.desired_state import bucket_config
from tocsin.adapters.nats.admin.provision import provision
from tocsin.adapters.nats.client.connection import Connection
from tocsin.adapters.nats.client.jetstream_wait import find_key, retry_until_available
from tocsin.adapters.nats.client.names import Names
from tocsin.adapters.nats.log.projections import NatsProjections
from tocsin.ports import LaggingReplica, NoResponder
from tocsin.settings import Settings
from tocsin.subjects import INSTALLATION_KEY, Bucket


async def answers_direct_gets(connection: Connection, names: Names, *, answers: bool) -> None:
    """A replica that has not caught up with its leader answers none."""
    config = bucket_config(Bucket.INSTALLATION, names) | {"allow_direct": answers}
    await connection.manage(f"STREAM.UPDATE.{config['name']}", json.dumps(config).encode())


async def test_missing_key_is_reported(connection: Connection, names: Names) -> None:
    assert await find_key(connection, names) is None


async def test_it_is_found(connection: Connection, names: Names) -> None:
    await provision(connection, names, Settings())
    assert await find_key(connection, names) is not None


async def test_one_that_was_removed_is_gone(connection: Connection, names: Names) -> None:
    await provision(connection, names, Settings())
    await NatsProjections(connection, names).remove(Bucket.INSTALLATION, INSTALLATION_KEY)
    assert await find_key(connection, names) is None


async def test_silent_replica_leaves_the_question_open(connection: Connection, names: Names) -> None:
    await provision(connection, names, Settings())
    await answers_direct_gets(connection, names, answers=False)
    with pytest.raises(NoResponder) as caught:
        await find_key(connection, names)
    assert caught.value.code == "no-responder"
    assert names.bucket_stream(Bucket.INSTALLATION) in caught.value.subject


async def test_key_is_requested_until_a_replica_answers(connection: Connection, names: Names) -> None:
    await provision(connection, names, Settings())
    await answers_direct_gets(connection, names, answers=False)
    asked = 0

    async def ask() -> bytes | None:
        nonlocal asked
        asked += 1
        if asked == 2:
            await answers_direct_gets(connection, names, answers=True)
        return await find_key(connection, names)

    assert await retry_until_available(ask) is not None
    assert asked == 2


async def test_a_replica_that_lags_leaves_it_open(
    connection: Connection, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    await provision(connection, names, Settings())

    async def behind(_: NatsProjections, __: Bucket, ___: str) -> None:
        """Answer as a replica that has the bucket and not yet its content."""

    with monkeypatch.context() as patched:
        patched.setattr(NatsProjections, "stored", behind)
        with pytest.raises(LaggingReplica) as caught:
            await find_key(connection, names)
    assert caught.value.code == "lagging-replica"
    assert await find_key(connection, names) is not None
