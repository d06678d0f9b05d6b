"""`POST /dev/reset`: wipe everything, as a conformance suite needs it before each of its cases.

It exists only where `tocsin dev --allow-reset` made it.
"""

from typing import Any

from fastapi import APIRouter

from ..auth.security import Author
from .components import Here

router = APIRouter(prefix="/dev", include_in_schema=False)


@router.post("/reset")
async def reset(here: Here, _: Author) -> dict[str, Any]:
    """Forget every job and every execution."""
    if here.reset is not None:
        await here.reset()
    return {"reset": here.reset is not None}
