"""Classes of jobs: a real nats-server, and a cluster of three."""

from pathlib import Path

from tests.services.health.test_status import program
from tests.system.clustered import clustered
from tests.system.running import running

QUORUM = "jobs:\n  - {name: pay, function: pay, job_class: QUORUM_REQUIRED}\n"


async def test_quorum_is_refused_on_one_server(nats_url: str, tmp_path: Path) -> None:
    async with running(nats_url, tmp_path) as tocsin:
        file = tmp_path / "jobs.yaml"
        file.write_text(QUORUM)
        refused = await program(tocsin.settings, "jobs", "apply", "-f", str(file), "-o", "json")
        assert refused.returncode != 0
        assert "and LEDGER has 1, LOG has 1: run 3 servers as a cluster" in refused.stderr
        shown = await program(tocsin.settings, "jobs", "list", "-o", "json")
        assert "pay" not in shown.stdout


async def test_quorum_is_accepted_on_three_servers(tmp_path: Path) -> None:
    async with clustered(tmp_path) as (tocsin, _):
        file = tmp_path / "jobs.yaml"
        file.write_text(QUORUM)
        code, plan = await tocsin.call("jobs", "apply", "-f", str(file))
        assert (code, [change["action"] for change in plan["changes"]]) == (0, ["create"])
