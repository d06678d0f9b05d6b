"""`/v1/definition-settings`: the names in the settings that definitions may refer to."""

from fastapi import APIRouter

from ....services.definition_settings import DefinitionSettings
from ..auth.security import Author
from .dependencies import Here

router = APIRouter(prefix="/v1/definition-settings", tags=["jobs"])


@router.get("", operation_id="getDefinitionSettings")
async def get_definition_settings(here: Here, caller: Author) -> DefinitionSettings:
    """List the channels of notifications, and the sources that are open to triggers of jobs.

    The answer has no names of secrets, and no channels outside the namespaces of the caller. Its `absent` and `work_queues` may be a second old.
    """
    known = DefinitionSettings.of(here.settings).without(await here.unheard_streams())
    return known.shown_to(caller.reaches)
