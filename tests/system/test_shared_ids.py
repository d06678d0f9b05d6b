"""A caller that is not bound to namespaces brings the id that the next instant of another job will have."""

import json
from datetime import timedelta
from typing import Final

import httpx
import pytest

from tests.ports import free_port
from tests.system.processes import Site
from tests.system.restoring import audited
from tocsin.domain import ids
from tocsin.domain.events import Admitted, Completed

JOB: Final = "nightly"


@pytest.mark.full
@pytest.mark.slow
async def test_brought_ids_of_instants_falsify_no_audit(ojs_site: Site) -> None:
    """The jobs of both end, and the audit, which compares the history too, blames neither."""
    tocsin, port = ojs_site, free_port()
    url = f"http://127.0.0.1:{port}"
    await tocsin.apply({"name": JOB, "function": "work", "schedule": "*/2 * * * * *", "overlap_policy": "allow"})
    tocsin.start()
    tocsin.start_gateway(port)
    tocsin.start_worker()
    tocsin.start_ojs_worker("w", 1_500, url)
    await tocsin.ready()
    second = tocsin.installation.clock.now().replace(microsecond=0)
    instants = [at for n in range(4, 12) if not (at := second + timedelta(seconds=n)).second % 2]
    taken = [ids.occurrence_id(JOB, at) for at in instants]
    nats = tocsin.installation.connection.client
    async with httpx.AsyncClient(base_url=url) as client:
        for id_ in taken:
            job = {"id": id_, "type": "work", "args": [0], "options": {"queue": "work"}}
            assert (await client.post("/ojs/v1/jobs", json=job)).status_code == httpx.codes.CREATED
            # No other door takes an id: as a field it is part of the input, or is refused.
            await nats.publish(f"{tocsin.settings.trigger_prefix}.{JOB}", json.dumps({"execution_id": id_}).encode())
            answer = await client.post(f"/v1/jobs/{JOB}/trigger", json={"execution_id": id_})
            assert answer.status_code == httpx.codes.UNPROCESSABLE_ENTITY, answer.text

    async def all_ended() -> bool:
        ends = [await tocsin.of_executions(job, Completed) for job in (JOB, "ojs.work")]
        return all({end.execution_id for end in of_job} >= set(taken) for of_job in ends)

    await tocsin.until(all_ended)
    await tocsin.delete(JOB)
    await tocsin.quiet()
    report = await audited(tocsin.installation)
    assert (report["clean"], report["violations"]) == (True, [])
    assert any("another job had" in remark for remark in report["remarks"]), report["remarks"]
    requested = [run for run in await tocsin.of_executions(JOB, Admitted) if run.trigger == "event"]
    assert len(requested) == len(taken)
    assert {end.execution_id for end in requested}.isdisjoint(taken)
