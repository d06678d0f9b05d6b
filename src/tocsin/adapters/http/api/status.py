"""`/v1/health` for load balancers, `/v1/status` and `/v1/doctor` for operators, `/dev/reset` for the conformance suite.

`/v1/health` requires no token, so it reports only whether this copy reaches the log, and has read the jobs. `/v1/status` is `tocsin status`, and
`/v1/doctor` is `tocsin doctor`, whose findings name jobs of every owner.
"""

from typing import Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel

from ....services.health import Finding
from ..auth.security import Administrator, Author, InstallationReader
from .dependencies import Here

router = APIRouter(prefix="/v1", tags=["health"])
dev_router = APIRouter(prefix="/dev", include_in_schema=False)


class Health(BaseModel, use_attribute_docstrings=True):
    """The state of this copy."""

    status: Literal["ok", "unavailable"]
    version: str
    jobs_read: bool
    """Whether this copy has read the ledgers of all jobs since it began. Before, answers about jobs take longer."""


@router.get(
    "/health", operation_id="getHealth", responses={503: {"model": Health, "description": "The log cannot be reached."}}
)
async def get_health(here: Here, response: Response) -> Health:
    """Check that this copy reaches the log. The answer may be a second old."""
    is_reached = await here.log_probe.answer()
    if not is_reached:
        response.status_code = 503
    return Health(status="ok" if is_reached else "unavailable", version=here.version, jobs_read=here.job_watch.has_read)


@router.get("/status", operation_id="getStatus")
async def get_status(here: Here, _: InstallationReader) -> dict[str, Any]:
    """Report servers, streams, leader, backlog and active consumers.

    A part that cannot be queried is reported as such.
    """
    return await here.status()


class Diagnosis(BaseModel):
    """The findings of every check, from the cause to the effect."""

    findings: list[Finding]


@router.get("/doctor", operation_id="getDoctor")
async def get_doctor(here: Here, _: Administrator) -> Diagnosis:
    """Check the installation; explain each finding and its remedy.

    It requests nothing of the servers' monitoring endpoints: name those with `tocsin doctor --monitor`.
    """
    return Diagnosis(findings=list(await here.doctor()))


@dev_router.post("/reset")
async def reset(here: Here, _: Author) -> dict[str, Any]:
    """Delete every job, cancel every execution, and forget the history.

    The route exists only under `tocsin dev --allow-reset`.
    """
    if here.reset is not None:
        await here.reset(here.paused_names)
    return {"reset": here.reset is not None}
