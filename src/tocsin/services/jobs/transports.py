"""The transports of queues, and the work that their workers can do."""

from collections.abc import Collection, Iterable

from ...domain.definition import DefinitionError, DefinitionProblem, JobDefinition
from ...domain.definition.builtin_work import PREFIX, is_builtin


def check_transports(definitions: Iterable[JobDefinition], bridged: Collection[str]) -> None:
    """Refuse built-in functions and bindings in the queues `bridged` of executors outside.

    Raises:
        DefinitionError: a job or a step runs a built-in function in such a queue, or has bindings there.
    """
    problems = [
        DefinitionProblem(
            "the executors of a queue with `transport: mq` know no bindings: name a queue that workers of the SDK read, or "
            "give the step an `input`",
            job=f"job `{definition.name}`",
            field="bind",
            step=step.name,
            code="no-binding-worker",
        )
        for definition in definitions
        for step in definition.dag
        if step.bind is not None and (step.queue or definition.queue) in bridged
    ]
    problems += [
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
