"""A step of a job, and the rules about steps: work, graph, callbacks and bindings."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, Literal, TypeAlias

from pydantic import JsonValue

from ..secret_reference import SecretReferenceError, find_references
from .bindings import UPSTREAM, VALUE, Bindings, references
from .builtin_work import FIELDS, PREFIX, BuiltinWork, function_of, is_builtin
from .command import CommandField, command_problems
from .container_work import ContainerField, container_problems
from .errors import DefinitionProblem, excess, show
from .fields import (
    MAX_INPUT_BYTES,
    Args,
    Function,
    Name,
    Object,
    Priority,
    StepName,
    Text,
    Timeout,
    size_of,
)
from .http_request import HttpField, request_problems
from .retry_policy import RetryPolicy
from .sql_work import ProcedureCall, SqlStatement, call_problems, statement_problems

Callback: TypeAlias = Literal["on_complete", "on_success", "on_failure"]


class Step(BuiltinWork):
    """A node of a job's graph. An absent field has the job's value."""

    name: StepName
    """The name of the step, unique in its job."""
    function: Function
    """The name of the function; a worker needs a handler for it. Either this, or a built-in function such as `command`."""
    command: CommandField | None = None
    """A command, which a worker with `--builtin command` runs. A list is short for its `argv`."""
    http: HttpField | None = None
    """A request, which a worker with `--builtin http` sends. A text is short for its `url`."""
    sql: SqlStatement | None = None
    """A statement, which a worker with `--builtin sql` runs in a database."""
    procedure: ProcedureCall | None = None
    """A procedure of a database, which a worker with `--builtin procedure` calls."""
    container: ContainerField | None = None
    """A container, which a worker with `--builtin container` runs in Kubernetes. A text is short for its `image`."""
    depends_on: tuple[Text, ...] = ()
    """The steps that must complete before this step starts."""
    callback: Callback | None = None
    """Run this step after all steps without `callback`, in place of `depends_on`, also if one of them failed: `on_complete` always,
    `on_success` if all completed, `on_failure` if one failed. The execution fails if one of them failed."""
    timeout: Timeout | None = None
    """The time limit of one attempt."""
    input: Object | None = None
    """The keyword arguments of the step's handler."""
    args: Args | None = None
    """The positional arguments of the step's handler."""
    bind: Bindings | None = None
    """Where the arguments of the step's handler come from, by parameter, in place of `input` and `args`: `upstream.STEP`, `input.KEY`, a
    list of these, or `{value: …}`."""
    queue: Name | None = None
    """The queue from which workers take the tasks of this step."""
    priority: Priority | None = None
    """The priority of this step, also in an execution whose trigger names another."""
    retry: RetryPolicy | None = None
    """The rule for the retries of this step."""


def given_fields(step: Step) -> tuple[str, ...]:
    """Return the fields that name the work; `function` only if it is not implied."""
    fields = tuple(name for name in FIELDS if getattr(step, name) is not None)
    return fields if any(step.function == function_of(name) for name in fields) else ("function", *fields)


def specification(step: Step) -> dict[str, JsonValue] | None:
    """Return the specification that a task carries; None: the function is not built in."""
    part = next((part for name in FIELDS if (part := getattr(step, name)) is not None), None)
    return None if part is None else part.model_dump(mode="json", exclude_defaults=True)


_CHECKS: Final[Mapping[str, Callable[[Any], Iterator[DefinitionProblem]]]] = {
    "command": command_problems,
    "http": request_problems,
    "sql": statement_problems,
    "procedure": call_problems,
    "container": container_problems,
}
"""The check of each specification of a built-in function."""


def work_problems(step: Step) -> Iterator[DefinitionProblem]:
    """Yield the problems of a step that are about built-in functions."""
    field = step.function.removeprefix(PREFIX)
    if is_builtin(step.function) and field not in FIELDS:
        reason = f"names that begin with `{PREFIX}` belong to built-in functions; use another name"
        yield DefinitionProblem(reason, field="function", value=show(step.function), code="reserved-name")
    elif is_builtin(step.function) and "function" in given_fields(step):
        reason = f"this function is built in: write `{field}`, and leave `function` out"
        yield DefinitionProblem(reason, field="function", value=show(step.function), code="reserved-name")
    for name, problems in _CHECKS.items():
        if (part := getattr(step, name)) is not None:
            yield from problems(part)


def graph_problems(steps: Sequence[Step]) -> Iterator[DefinitionProblem]:
    """Yield the problems of the names and the edges of steps.

    A cycle is reported only if every edge leads to exactly one existing step; otherwise it would repeat the other
    problems.
    """
    names = Counter(step.name for step in steps)
    for name, count in names.items():
        if count > 1:
            reason = f"{count} steps have this name, and each needs its own"
            yield DefinitionProblem(reason, field="name", step=name, code="duplicate-name")
    problems = [problem for step in steps for problem in _edge_problems(step, names)]
    yield from problems
    if not problems and len(names) == len(steps) and (loop := cycle({step.name: step.depends_on for step in steps})):
        reason = f"the steps depend on each other in a circle: {' → '.join(loop)}"
        yield DefinitionProblem(reason, field="depends_on", step=loop[0], code="dependency-cycle")


def cycle(edges: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Return one cycle along "depends on", closed, from its first written step, or nothing."""
    try:
        TopologicalSorter({name: tuple(edges[name]) for name in edges}).prepare()
    except CycleError as error:
        walk: list[str] = error.args[1][:0:-1]  # graphlib lists dependencies first
        place = {name: index for index, name in enumerate(edges)}
        start = min(range(len(walk)), key=lambda index: place[walk[index]])
        return (*walk[start:], *walk[:start], walk[start])
    return ()


def _edge_problems(step: Step, names: Collection[str]) -> Iterator[DefinitionProblem]:
    for dependency, count in Counter(step.depends_on).items():
        if count > 1:
            reason = f"`{dependency}` is named {count} times"
            yield DefinitionProblem(reason, field="depends_on", step=step.name, code="duplicate-dependency")
        if dependency == step.name:
            reason = "a step cannot depend on itself"
            yield DefinitionProblem(reason, field="depends_on", step=step.name, code="dependency-cycle")
        elif dependency not in names:
            close = get_close_matches(dependency, names, n=1)
            reason = f"there is no step `{dependency}`" + (f", did you mean `{close[0]}`?" if close else "")
            yield DefinitionProblem(reason, field="depends_on", step=step.name, code="unknown-step")


def callback_problems(steps: Sequence[Step]) -> Iterator[DefinitionProblem]:
    """Yield the problems of the callbacks among the steps of a job."""
    called = {step.name: step.callback for step in steps if step.callback is not None}
    if called and len(called) == len(steps):
        reason = "all steps are callbacks: give a step without `callback` too"
        yield DefinitionProblem(reason, field="dag", code="required")
    counts = Counter(called.values())
    for step in steps:
        if step.callback is not None and counts[step.callback] > 1:
            reason = f"{counts[step.callback]} steps have this callback, and a job has one of each"
            value = show(step.callback)
            yield DefinitionProblem(reason, field="callback", value=value, step=step.name, code="exclusive-fields")
        if step.callback is not None and step.depends_on:
            reason = "a callback runs after all steps that are no callbacks: leave `depends_on` out"
            yield DefinitionProblem(reason, field="depends_on", step=step.name, code="exclusive-fields")
        elif waited_for := [name for name in step.depends_on if name in called]:
            reason = f"`{waited_for[0]}` is a callback, which waits for this step"
            yield DefinitionProblem(reason, field="depends_on", step=step.name, code="dependency-cycle")


def binding_problems(step: Step) -> Iterator[DefinitionProblem]:
    if step.bind is None:
        return
    if is_builtin(step.function):
        reason = "a built-in function has no parameters: use a template, such as `{{ upstream.extract.rows }}`"
        yield DefinitionProblem(reason, field="bind", code="exclusive-fields")
    for field in ("input", "args"):
        if getattr(step, field) is not None:
            reason = "`bind` names every argument of the handler: write a constant as `{value: …}` there"
            yield DefinitionProblem(reason, field=field, code="exclusive-fields")
    for name, binding in step.bind.items():
        for reference in references(binding):
            upstream = reference.removeprefix(UPSTREAM)
            if reference.startswith(UPSTREAM) and upstream not in step.depends_on:
                reason = f"the step does not depend on `{upstream}`: add it to `depends_on`"
                yield DefinitionProblem(reason, field=f"bind.{name}", value=show(reference), code="unknown-step")
    constants = {name: binding[VALUE] for name, binding in step.bind.items() if isinstance(binding, dict)}
    try:
        find_references(constants)
    except SecretReferenceError as error:
        yield DefinitionProblem(str(error), field="bind", code="malformed-secret-reference")
    advice = "keep large data in a store"
    yield from excess(size_of(constants), "bytes of JSON in constants", MAX_INPUT_BYTES, "bind", advice)
