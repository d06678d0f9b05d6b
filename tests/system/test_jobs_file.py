"""`tocsin run` applies the setting `jobs_file` beside the registrar."""

import asyncio
from pathlib import Path

import pytest

from tests.system.processes import Program, Site, site
from tocsin.domain.events import Defined

JOBS = """
jobs:
  - { name: nightly, schedule: "0 3 * * *", function: work }
  - { name: on-demand, function: work }
"""


async def says(tocsin: Site, program: Program, action: str) -> None:
    async def has_said() -> bool:
        return f'"action": "{action}"' in program.said()

    await tocsin.until(has_said)


async def definitions(tocsin: Site) -> list[str]:
    stored = await tocsin.log.read("ledger.*.defined")
    return sorted(one.message.job for one in stored if isinstance(one.message, Defined))


async def test_copies_register_the_jobs_of_the_file_once(nats_url: str, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(JOBS)
    async with site(nats_url, tmp_path, jobs_file=file) as tocsin:
        copies = [tocsin.start("registrar"), tocsin.start("registrar", "planner")]
        await asyncio.gather(*(says(tocsin, copy, "jobs-file-applied") for copy in copies))
        assert await definitions(tocsin) == ["nightly", "on-demand"]


@pytest.mark.parametrize("text", ["jobs: [{ name: nightly, schedule: '0 25 * * *', function: work }]", None])
async def test_stages_run_beside_a_wrong_file(nats_url: str, tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "jobs.yaml"
    if text is not None:
        file.write_text(text)
    async with site(nats_url, tmp_path, jobs_file=file) as tocsin:
        registrar = tocsin.start("registrar")
        await says(tocsin, registrar, "jobs-file-refused")
        await tocsin.ready()
        await tocsin.apply({"name": "other", "function": "work"})
        assert await definitions(tocsin) == ["other"]
        assert '"code": "invalid-definition"' in registrar.said()


async def test_other_stages_leave_the_file_alone(nats_url: str, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(JOBS)
    async with site(nats_url, tmp_path, jobs_file=file) as tocsin:
        tocsin.start("ticker", "planner")
        await tocsin.ready()
        assert await definitions(tocsin) == []
