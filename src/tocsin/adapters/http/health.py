"""`/v1/health`: whether this copy can do its work; asked by load balancers, so by anybody, and saying nothing more."""

from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel

from ...ports import LogUnavailable
from .parts import Here

router = APIRouter(prefix="/v1/health", tags=["health"])


class Health(BaseModel):
    """Whether requests can be answered."""

    status: Literal["ok", "unavailable"]
    version: str


@router.get("", operation_id="getHealth", responses={503: {"model": Health, "description": "The log does not answer."}})
async def get_health(here: Here, response: Response) -> Health:
    """Whether this copy reaches the log."""
    try:
        await here.log.now()
    except LogUnavailable:
        response.status_code = 503
        return Health(status="unavailable", version=here.version)
    return Health(status="ok", version=here.version)
