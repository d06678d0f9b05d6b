"""The transports of queues, and the work that their workers can do."""

from collections.abc import Collection, Iterable

from ...domain.definition import DefinitionError, DefinitionProblem, JobDefinition
from ...domain.definition.builtin_work import PREFIX, is_builtin


def check_transports(definitions: Iterable[JobDefinition], bridged: Collection[str]) -> None:
    """Refuse built-in functions in the queues `bridged` of executors outside.

    Raises:
        DefinitionError: a job or a step runs a built-in function in such a queue.
    """
    problems = [
        DefinitionProblem(
            f"the executors of a queue with `transport: mq` cannot run `{step.function.removeprefix(PREFIX)}`: "
            "name a queue that workers of the SDK read",
            job=f"job `{definition.name}`",
            field="queue",
            step=step.name if definition.dag else None,
            value=f"`{queue}`",
            code="no-builtin-worker",
        )
        for definition in definitions
        for step in definition.steps()
        if is_builtin(step.function) and (queue := step.queue or definition.queue) in bridged
    ]
    if problems:
        raise DefinitionError(*problems)
