"""The transports of queues, and the work that their workers can do."""

from collections.abc import Collection, Iterable

from ...domain.definition import DefinitionError, DefinitionProblem, JobDefinition
from ...domain.definition.builtin_work import PREFIX, is_builtin
from ...domain.secret_reference import refers_to_secrets


def check_transports(definitions: Iterable[JobDefinition], bridged: Collection[str]) -> None:
    """Refuse built-in functions, bindings and secrets in the queues `bridged` of executors outside.

    A secret would be stored in the stream of their tasks, which each of them reads.

    Raises:
        DefinitionError: a job or a step runs a built-in function in such a queue, or has bindings or a reference to a secret there.
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
    problems += [
        DefinitionProblem(
            f"the executors of queue `{queue}` (`transport: mq`) get no secrets, because their tasks are stored: let them read "
            "their own, name a queue that workers of the SDK read, or write $${ for a literal ${",
            job=f"job `{definition.name}`",
            field=field,
            step=step.name if definition.dag else None,
            code="secret-reference-not-allowed",
        )
        for definition in definitions
        for step in definition.steps()
        if (queue := step.queue or definition.queue) in bridged
        for field, value in (("input", step.input), ("args", step.args))
        if value and refers_to_secrets(value)
    ]
    if problems:
        raise DefinitionError(*problems)
