"""The layout number of the streams, and the refusal of every other layout."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.system.running import settings
from tocsin import bootstrap
from tocsin.adapters.nats.admin.desired_state import all_streams
from tocsin.adapters.nats.admin.provision import provision
from tocsin.adapters.nats.client.connection import Connection
from tocsin.adapters.nats.client.names import Names
from tocsin.bootstrap import Installation
from tocsin.cli.runtime.error_report import failure_of
from tocsin.cli.runtime.errors import Exit
from tocsin.ports import UnsupportedLayout
from tocsin.services.health import Level, examine, status
from tocsin.settings import Settings
from tocsin.subjects import LAYOUT, LAYOUT_KEY, Bucket, Stream

OLDER = {"older": str(LAYOUT - 1), "missing": None, "not a number": "one"}


async def test_every_stream_has_the_layout_number(connection: Connection, names: Names) -> None:
    triggers = {"subjects": [f"{names.root}-captured.>"], "webhooks": {"SECRET": ["/hooks/in"]}}
    settings = {"triggers": triggers, "queues": {"outside": {"transport": "mq"}}}
    await provision(connection, names, Settings.model_validate(settings))

    for stream in all_streams(names):
        assert (await _config(connection, stream))["metadata"][LAYOUT_KEY] == str(LAYOUT)


async def test_metadata_of_others_stays(connection: Connection, names: Names) -> None:
    await provision(connection, names, Settings())
    log = names.stream(Stream.LOG)
    config = await _config(connection, log)
    mine = config | {"metadata": config["metadata"] | {"team": "payments"}, "max_msgs": 1_000}
    await connection.manage(f"STREAM.UPDATE.{log}", json.dumps(mine).encode())

    changes = await provision(connection, names, Settings())

    assert [change.fields for change in changes if change.action != "unchanged"] == [{"max_msgs": (1_000, -1)}]
    metadata = (await _config(connection, log))["metadata"]
    assert (metadata["team"], metadata[LAYOUT_KEY]) == ("payments", str(LAYOUT))


@pytest.mark.parametrize("layout", OLDER.values(), ids=OLDER.keys())
async def test_init_refuses_an_older_layout(connection: Connection, names: Names, layout: str | None) -> None:
    bucket = names.bucket_stream(Bucket.CURSORS)  # a stream that is left over from the old installation suffices
    await provision(connection, names, Settings())
    await _set_layout(connection, bucket, layout)
    log = names.stream(Stream.LOG)
    await connection.manage(f"STREAM.DELETE.{log}")

    with pytest.raises(UnsupportedLayout) as caught:
        await provision(connection, names, Settings())

    assert caught.value.code == "unsupported-layout"
    assert caught.value.reason.startswith(f"stream {bucket} has ")
    steps = ["tocsin jobs export", "`root`", *all_streams(names), "tocsin init", "tocsin jobs apply"]
    positions = [caught.value.remedy.index(step) for step in steps]
    assert positions == sorted(positions)
    assert await connection.find(f"STREAM.INFO.{log}", absent=10059) is None, "a refusal changes nothing"


async def test_init_refuses_a_newer_layout(connection: Connection, names: Names) -> None:
    await provision(connection, names, Settings())
    await _set_layout(connection, names.commits_stream, str(LAYOUT + 1))

    with pytest.raises(UnsupportedLayout) as caught:
        await provision(connection, names, Settings())

    assert caught.value.remedy == "upgrade Tocsin"


async def test_nothing_starts_on_an_older_layout(nats_url: str, tmp_path: Path) -> None:
    configured = settings(nats_url, tmp_path)
    async with bootstrap.connect(configured) as installation:
        await bootstrap.initialize(installation)
        assert await bootstrap.is_set_up(installation, within=1)
        await _set_layout(installation.connection, installation.names.commits_stream, None)

        for start in (_command, _stages):
            with pytest.raises(UnsupportedLayout) as caught:
                await start(installation)
            failure = failure_of(caught.value)
            assert (failure.code, failure.error_code) == (Exit.UNREACHABLE, "unsupported-layout")


async def test_doctor_reports_only_the_layout(nats_url: str, tmp_path: Path) -> None:
    async with bootstrap.connect(settings(nats_url, tmp_path)) as installation:
        await bootstrap.initialize(installation)
        await _set_layout(installation.connection, installation.names.commits_stream, None)

        (finding,) = await examine(bootstrap.health_target(installation))

    assert (finding.code, finding.level) == ("unsupported-layout", Level.BAD)
    assert "tocsin jobs apply" in finding.do


async def test_status_refuses_an_older_layout(nats_url: str, tmp_path: Path) -> None:
    async with bootstrap.connect(settings(nats_url, tmp_path)) as installation:
        await bootstrap.initialize(installation)
        await _set_layout(installation.connection, installation.names.commits_stream, None)

        with pytest.raises(UnsupportedLayout):
            await status(bootstrap.health_target(installation))


async def _command(installation: Installation) -> None:
    await bootstrap.is_set_up(installation, within=1)


async def _stages(installation: Installation) -> None:
    await bootstrap.run_stages(installation, ["planner"])


async def _set_layout(connection: Connection, stream: str, layout: str | None) -> None:
    config = await _config(connection, stream)
    config["metadata"].pop(LAYOUT_KEY)
    if layout is not None:
        config["metadata"][LAYOUT_KEY] = layout
    await connection.manage(f"STREAM.UPDATE.{stream}", json.dumps(config).encode())


async def _config(connection: Connection, stream: str) -> dict[str, Any]:
    config: dict[str, Any] = (await connection.manage(f"STREAM.INFO.{stream}"))["config"]
    return config
