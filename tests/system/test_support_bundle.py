"""`tocsin support-bundle` against an installation at work."""

import json
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.system.processes import Site, site


@pytest.fixture
async def tocsin(nats_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with site(nats_url, tmp_path, metrics={"enabled": False}) as it:
        yield it


@pytest.mark.slow
async def test_every_part_is_written(tocsin: Site, tmp_path: Path) -> None:
    tocsin.start()
    await tocsin.ready()
    path = tmp_path / "bundle.tar.gz"
    code, answer = await tocsin.call("support-bundle", "--out", str(path))
    assert (code, [part for part in answer["parts"] if part["error"]]) == (0, [])
    with tarfile.open(path) as archive:
        documents = {
            name: json.load(file)
            for name in ("settings", "status", "doctor", "bundle")
            if (file := archive.extractfile(f"tocsin-support/{name}.json"))
        }
    assert documents["status"]["streams"]
    assert {finding["level"] for finding in documents["doctor"]} <= {"ok", "warn", "bad"}
    assert "missing" not in json.dumps(documents["bundle"]["files"])
