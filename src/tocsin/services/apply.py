"""Apply definitions as the command line, a jobs file and the Python client do."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..domain.definition import JobDefinition, with_timezone
from ..ports import NotPermitted
from ..settings import Settings
from .jobs import Plan
from .operations.errors import NotFound
from .operator import Operator

if TYPE_CHECKING:
    from ..domain.policy import Policy


async def apply_definitions(operator: Operator, definitions: Iterable[JobDefinition], settings: Settings) -> Plan:
    """Apply definitions without confirmation."""
    plan = await operator.plan(await with_defaults(operator, definitions, settings))
    await operator.carry_out(plan)
    return plan


def with_owner(definition: JobDefinition, owner: str) -> JobDefinition:
    """Return a definition with `owner`, unless it names one."""
    return definition if "owner" in definition.model_fields_set else definition.model_copy(update={"owner": owner})


def owners_of(definitions: Iterable[JobDefinition], owner: str) -> set[str]:
    """Return the owners that definitions name, or else `owner`."""
    return {definition.owner for definition in definitions if definition.owner} or {owner}


async def with_defaults(
    operator: Operator, definitions: Iterable[JobDefinition], settings: Settings
) -> tuple[JobDefinition, ...]:
    """Return definitions with the defaults of the policy and the settings."""
    from ..domain.policy import NO_POLICY  # noqa: PLC0415 - most operations need no policy

    try:
        policy = (await operator.policy()).policy
    except (NotFound, NotPermitted):  # an older API, or a user without the right to read it
        policy = NO_POLICY
    return tuple(completed(definition, policy, settings) for definition in definitions)


def completed(definition: JobDefinition, policy: "Policy", settings: Settings) -> JobDefinition:
    """Return a definition with the defaults of a policy and the settings.

    Raises:
        DefinitionError: its schedule has no sense in the default time zone.
    """
    from ..domain.policy import with_timeout  # noqa: PLC0415 - see `with_defaults`

    timed = with_timeout(definition, policy, settings.execution.default_timeout)
    return with_timezone(timed, settings.execution.default_timezone)
