"""The sizes of the messages that the executions of a job need."""

from collections.abc import Iterable
from typing import Final

from ...domain import execution_plan
from ...domain.definition import DefinitionError, DefinitionProblem, JobDefinition

DEFAULT_LIMIT_BYTES: Final = 1_048_576
"""The largest message that a NATS server accepts by default."""


def check_sizes(definitions: Iterable[JobDefinition], limit: int) -> None:
    """Refuse jobs whose executions might not fit a message of `limit` bytes.

    The limits of a definition are made for a server's default. But each step of a plan repeats the job's retry policy.

    Raises:
        DefinitionError: a job is too large.
    """
    sizes = {
        definition.name: execution_plan.largest_message_bytes(definition)
        for definition in definitions
        if definition.dag or limit < DEFAULT_LIMIT_BYTES
    }
    problems = [
        DefinitionProblem(
            f"the plan of an execution, with a trigger's input, may need {size:,} bytes, and the NATS server accepts "
            f"messages of {limit:,}: divide the job, or raise `max_payload` of the server",
            job=f"job `{name}`",
            code="too-large",
        )
        for name, size in sizes.items()
        if size > limit
    ]
    if problems:
        raise DefinitionError(*problems)
