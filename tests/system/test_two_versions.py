"""An earlier commit with another layout, and this checkout: each refuses the installation of the other.

Versions of one layout agree on the format of commits, as tests/commits/test_presence.py shows.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.system import old_version
from tests.system.processes import Site, run_command, uninitialized_site
from tocsin.cli.runtime.errors import Exit

OLD: Final = "ab77c925334c105f9b291eec31410c338f2b7c16"
"""A commit of layout 10, which has a message for each decision."""


async def old_command(tocsin: Site, source: Path, *arguments: str) -> tuple[int | None, str]:
    """Return the exit code of a command of the old version, and what it said."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tocsin", *arguments),
        env=old_version.environment(tocsin.environment, source),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    return process.returncode, said.decode()


@pytest.mark.slow
async def test_older_layout_is_refused_by_every_command(nats_url: str, tmp_path: Path) -> None:
    source = old_version.sources(OLD, tmp_path / "old")
    async with uninitialized_site(nats_url, tmp_path) as tocsin:
        code, said = await old_command(tocsin, source, "init")
        assert code == 0, said
        file = tmp_path / "jobs.yaml"
        file.write_text(json.dumps({"jobs": [{"name": "job", "function": "f"}]}), "utf-8")
        for arguments in (("init",), ("run", "planner"), ("jobs", "apply", "-f", str(file)), ("status",), ("audit",)):
            ended = await run_command(arguments, tocsin.environment)
            said = " ".join((ended.stdout + ended.stderr).split())
            assert ended.returncode == Exit.UNREACHABLE, (arguments, said)
            assert "has layout 10, and this version of Tocsin needs layout" in said
            assert "tocsin jobs export" in said
        _, findings = await tocsin.call("doctor")
        assert [finding["code"] for finding in findings] == ["unsupported-layout"]  # type: ignore[index]


@pytest.mark.slow
async def test_newer_layout_is_refused_by_old_init(nats_url: str, tmp_path: Path) -> None:
    source = old_version.sources(OLD, tmp_path / "old")
    async with uninitialized_site(nats_url, tmp_path) as tocsin:
        await tocsin.call("init")
        code, said = await old_command(tocsin, source, "init")
        assert code == Exit.UNREACHABLE
        assert "upgrade Tocsin" in " ".join(said.split())
