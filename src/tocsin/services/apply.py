"""Apply definitions as the command line, a jobs file and the Python client do."""

from collections.abc import Iterable

from ..domain.definition import JobDefinition
from ..settings import Settings
from .jobs import Plan
from .operations.errors import NotFound
from .operator import NotPermitted, Operator


async def apply_definitions(operator: Operator, definitions: Iterable[JobDefinition], settings: Settings) -> Plan:
    """Apply definitions without confirmation."""
    plan = await operator.plan(await with_timeouts(operator, definitions, settings))
    await operator.carry_out(plan)
    return plan


def with_owner(definition: JobDefinition, owner: str) -> JobDefinition:
    """Return a definition with `owner`, unless it names one."""
    return definition if "owner" in definition.model_fields_set else definition.model_copy(update={"owner": owner})


def owners_of(definitions: Iterable[JobDefinition], owner: str) -> set[str]:
    """Return the owners that definitions name, or else `owner`."""
    return {definition.owner for definition in definitions if definition.owner} or {owner}


async def with_timeouts(
    operator: Operator, definitions: Iterable[JobDefinition], settings: Settings
) -> tuple[JobDefinition, ...]:
    """Return definitions with the default timeout of the policy, or else that of the settings."""
    from ..domain.policy import NO_POLICY, with_timeout  # noqa: PLC0415 - most operations need no policy

    try:
        policy = (await operator.policy()).policy
    except (NotFound, NotPermitted):  # an older API, or a user without the right to read it
        policy = NO_POLICY
    return tuple(with_timeout(definition, policy, settings.execution.default_timeout) for definition in definitions)
