"""How things are: `/v1/health`, whether this copy can do its work, is asked by load balancers, so by anybody, and says no more.

`/v1/status` tells whoever may read what the installation consists of at this moment, as `tocsin status` does.
"""

from typing import Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel

from ....ports import LogUnavailable
from ..auth.security import Author, Reader
from .dependencies import Here

router = APIRouter(prefix="/v1", tags=["health"])
dev_router = APIRouter(prefix="/dev", include_in_schema=False)


class Health(BaseModel):
    """Whether requests can be answered."""

    status: Literal["ok", "unavailable"]
    version: str


@router.get(
    "/health", operation_id="getHealth", responses={503: {"model": Health, "description": "The log does not answer."}}
)
async def get_health(here: Here, response: Response) -> Health:
    """Whether this copy reaches the log."""
    try:
        await here.log.now()
    except LogUnavailable:
        response.status_code = 503
        return Health(status="unavailable", version=here.version)
    return Health(status="ok", version=here.version)


@router.get("/status", operation_id="getStatus")
async def get_status(here: Here, caller: Reader) -> dict[str, Any]:
    """The servers, the streams, who leads, what waits, and whether anybody works it off; what cannot be asked is said."""
    _ = caller
    return await here.status()


@dev_router.post("/reset")
async def reset(here: Here, _: Author) -> dict[str, Any]:
    """Delete every job and every execution. The route exists only under `tocsin dev --allow-reset`."""
    if here.reset is not None:
        await here.reset()
    return {"reset": here.reset is not None}
