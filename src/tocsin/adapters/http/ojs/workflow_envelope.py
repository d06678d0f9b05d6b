"""Validate the workflows of the Open Job Spec (ojs-workflows, ojs-http-binding §14)."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast, get_args

from pydantic import JsonValue, ValidationError

from ....domain.definition import MAX_COPIES_BYTES, DefinitionError, JobDefinition, Step, show, size_of
from ....domain.definition.fields import text_problem
from ....domain.definition.step import Callback
from ....domain.events import Actor, Enqueued, StepMeta, Workflow, WorkflowKind, WorkflowNode
from ....domain.execution.workflow import ROOT, edges
from ..api.problems import FieldError, Problem
from . import envelope
from .envelope import META_KEY, Defaults

JOB: Final = "ojs-workflow"
"""The job name of executions that are workflows."""
MAX_JOBS: Final = 100
"""Jobs of a workflow, with nested jobs and callbacks. Each report reads the events of all of them."""
MAX_DEPTH: Final = 5
MAX_NAME_LENGTH: Final = 255
CALLBACKS: Final[tuple[str, ...]] = get_args(Callback)
_KINDS: Final = ("chain", "group", "batch")
_STEP_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-]{0,63}")
_REFUSED: Final = ("scheduled_at", "delay_until", "expires_at", "unique", "rate_limit")
"""Options that a job of a workflow may not have, because the workflow decides when it runs."""


def read(body: Mapping[str, Any], execution_id: str, defaults: Defaults, by: Actor) -> Enqueued:
    """Return the input of a workflow; `execution_id`: its id if it brings none."""
    own_id = body.get("id")
    if own_id is not None and not (isinstance(own_id, str) and envelope.is_job_id(own_id)):
        raise _invalid("id", "must be a UUIDv7 in lower case", own_id)
    options = _options(body)
    _require_no_time("", body, options)
    of_jobs, leaves_dead_letter = _without_exhaustion(options)
    reader = _Reader(own_id or execution_id, defaults, by, of_jobs)
    is_graph = "type" not in body and "steps" in body
    tree = reader.graph(body) if is_graph else Workflow(nodes=reader.tree(body))
    return _enqueued(reader, tree, own_id or execution_id, defaults, by, leaves_dead_letter=leaves_dead_letter)


def _without_exhaustion(options: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Return the options for jobs, and whether the workflow leaves a dead letter.

    Beside `type`, `retry.on_exhaustion` is of the workflow: its jobs fail for the workflow to decide.
    """
    retry = options.get("retry")
    if not isinstance(retry, dict) or "on_exhaustion" not in retry:
        return options, False
    given = retry["on_exhaustion"]
    if given not in (None, "discard", "dead_letter"):  # it may be a list, which no set takes
        raise _invalid("options.retry.on_exhaustion", "must be `discard` or `dead_letter`", given)
    own = {field: value for field, value in retry.items() if field != "on_exhaustion"}
    return {**options, "retry": own}, given == "dead_letter"


class _Job(NamedTuple):
    """A job of a workflow. `alone`: the input that it would be without the workflow."""

    name: str
    type: str
    alone: Enqueued
    depends_on: tuple[str, ...]


class _Reader:
    def __init__(self, execution_id: str, defaults: Defaults, by: Actor, options: Mapping[str, Any]) -> None:
        self._execution_id = execution_id
        self._defaults = defaults
        self._by = by
        self._options = options
        self.jobs: list[_Job] = []

    def tree(
        self, body: Mapping[str, Any], path: str = "", key: str = ROOT, depth: int = 1
    ) -> tuple[WorkflowNode, ...]:
        """Return the nodes of a chain, group or batch, the outermost first."""
        kind = body.get("type")
        if kind not in _KINDS:
            raise _invalid(_at(path, "type"), f"must be one of {', '.join(_KINDS)}", kind)
        if depth > MAX_DEPTH:
            raise _invalid(path, f"is nested {depth} levels deep; at most {MAX_DEPTH}")
        _require_not_pending(path, body)
        field = "steps" if kind == "chain" else "jobs"
        members, nodes = list[str](), list[WorkflowNode]()
        for index, member in enumerate(_array(body, path, field)):
            name, place = _below(key, str(index)), f"{_at(path, field)}[{index}]"
            if isinstance(member, dict) and _is_workflow(member):
                nodes += self.tree(member, place, name, depth + 1)
            else:
                self._job(member, place, name)
            members.append(name)
        callbacks = self._callbacks(body, path, key) if kind == "batch" else {}
        own = WorkflowNode(
            key=key,
            kind=cast("WorkflowKind", kind),
            members=tuple(members),
            name=_text(body, path, "name"),
            id=_text(body, path, "id") if depth > 1 else None,
        ).changed(**callbacks)
        return (own, *nodes)

    def _callbacks(self, body: Mapping[str, Any], path: str, key: str) -> dict[str, str]:
        given, place = body.get("callbacks"), _at(path, "callbacks")
        if not isinstance(given, dict) or not any(given.get(kind) is not None for kind in CALLBACKS):
            raise _invalid(place, f"must be an object with at least one of {', '.join(CALLBACKS)}", given)
        if unknown := [name for name in given if name not in CALLBACKS]:
            raise _invalid(f"{place}.{unknown[0]}", f"is no callback; callbacks are {', '.join(CALLBACKS)}")
        called = {kind: _below(key, kind) for kind in CALLBACKS if given.get(kind) is not None}
        for kind, name in called.items():
            self._job(given[kind], f"{place}.{kind}", name)
        return called

    def graph(self, body: Mapping[str, Any]) -> Workflow:
        """Return the workflow of steps that name the steps they depend on."""
        _require_not_pending("", body)
        before: dict[str, tuple[str, ...]] = {}
        callbacks: dict[str, str] = {}
        for index, step in enumerate(_array(body, "", "steps")):
            path = f"steps[{index}]"
            if not isinstance(step, dict):
                raise _invalid(path, "must be an object: a step", step)
            name, depends_on = step.get("id"), step.get("depends_on")
            if not isinstance(name, str) or not _STEP_ID.fullmatch(name):
                requirement = (
                    "must be letters, digits, underscores and hyphens, the first a letter or a digit, at most 64"
                )
                raise _invalid(f"{path}.id", requirement, name)
            if name in before:
                raise _invalid(f"{path}.id", "is the id of another step too", name)
            depends_on = [] if depends_on is None else depends_on
            if not isinstance(depends_on, list) or not all(isinstance(other, str) for other in depends_on):
                raise _invalid(f"{path}.depends_on", "must be an array of ids of steps", depends_on)
            kind = _options(step, path).get("callback_type")
            if kind is not None and (kind not in CALLBACKS or kind in callbacks):
                requirement = f"must be one of {', '.join(CALLBACKS)}, and differ from that of other steps"
                raise _invalid(f"{path}.options.callback_type", requirement, kind)
            callbacks |= {} if kind is None else {kind: name}
            before[name] = tuple(depends_on)
            self._job({k: v for k, v in step.items() if k not in {"id", "depends_on"}}, path, name, before[name])
        root = _root(before, callbacks)
        named = root.changed(name=_text(body, "", "name"))
        return Workflow(nodes=(named,), names_steps=True)

    def _job(self, body: object, path: str, name: str, depends_on: tuple[str, ...] = ()) -> None:
        if not isinstance(body, dict):
            raise _invalid(path, "must be an object: a job", body)
        if len(self.jobs) == MAX_JOBS:
            raise _invalid(
                path, f"is one job too many: a workflow has at most {MAX_JOBS}, with nested jobs and callbacks"
            )
        if body.get("id") is not None:
            raise _invalid(
                f"{path}.id", "must be left out: the server gives the jobs of a workflow their ids", body["id"]
            )
        options = _options(body, path)
        _require_no_time(path, body, options)
        usual = {field: value for field, value in self._options.items() if body.get(field) is None}
        merged = {**body, "options": {**usual, **options}} if usual else body
        try:
            alone = envelope.read(merged, f"{self._execution_id}:{name}", self._defaults, self._by)
        except Problem as problem:
            wrong = problem.errors[0] if problem.errors else FieldError(right=problem.detail)
            raise _invalid(_at(path, wrong.field), wrong.right, shown=wrong.value) from None
        if alone.definition.dead_letter:
            place = f"{path}.options.retry.on_exhaustion"
            raise _invalid(
                place, "must be `discard`: the `options` of the workflow decide, beside its `type`", "dead_letter"
            )
        self.jobs.append(_Job(name, merged["type"], alone, depends_on))


def _root(before: Mapping[str, tuple[str, ...]], callbacks: Mapping[str, str]) -> WorkflowNode:
    members = tuple(name for name in before if name not in callbacks.values())
    free = not any(before[name] for name in members)
    if not callbacks:
        one_by_one = all(before[name] == members[max(0, index - 1) : index] for index, name in enumerate(members))
        kind: WorkflowKind = "chain" if one_by_one else "group" if free else "dag"
        return WorkflowNode(key=ROOT, kind=kind, members=members)
    follow = all(set(before[name]) == set(members) for name in callbacks.values())
    if not members or not free or not follow:
        raise _invalid("steps", "with a `callback_type` must depend on all other steps, and these on no step")
    return WorkflowNode(key=ROOT, kind="batch", members=members).changed(**callbacks)


def _enqueued(
    reader: _Reader, tree: Workflow, execution_id: str, defaults: Defaults, by: Actor, *, leaves_dead_letter: bool
) -> Enqueued:
    implied = {} if tree.names_steps else edges(tree)
    traces = {job.alone.traceparent for job in reader.jobs}
    definitions = {job.name: job.alone.definition for job in reader.jobs}
    meta = tuple(StepMeta(step=name, meta=_meta(definition)) for name, definition in definitions.items())
    described: list[Any] = [tree.document(), [of_step.meta for of_step in meta]]
    if (size := size_of(described)) > MAX_COPIES_BYTES:
        raise _invalid(
            "meta", f"and names of all jobs have {size:,} bytes of JSON together; at most {MAX_COPIES_BYTES:,}"
        )
    try:
        definition = JobDefinition(
            name=JOB,
            dag=tuple(
                Step(
                    name=job.name,
                    function=job.type,
                    depends_on=implied.get(job.name, job.depends_on),
                    timeout=job.alone.definition.timeout,
                    args=job.alone.definition.args,
                    queue=job.alone.definition.queue,
                    priority=job.alone.definition.priority,
                    retry=job.alone.definition.retry,
                )
                for job in reader.jobs
            ),
            dead_letter=leaves_dead_letter,
            overlap_policy="allow",
            tags=tuple(sorted({tag for definition in definitions.values() for tag in definition.tags})),
        )
    except (DefinitionError, ValidationError) as error:
        field = "steps" if tree.names_steps or tree.nodes[0].kind == "chain" else "jobs"
        raise _invalid(field, envelope.why_refused(error)) from None
    return Enqueued(
        execution_id=execution_id,
        definition=definition,
        by=by,
        traceparent=next(iter(traces)) if len(traces) == 1 else defaults.traceparent,
        workflow=tree,
        step_meta=meta,
    )


def _meta(definition: JobDefinition) -> dict[str, Any]:
    about = definition.meta.get(META_KEY)
    own = {**about, "tags": list(definition.tags)} if isinstance(about, dict) and definition.tags else about
    return {**definition.meta, META_KEY: own}


def _is_workflow(body: Mapping[str, Any]) -> bool:
    """Return whether a member is a workflow. A job may have the type `chain` too."""
    return not body.keys().isdisjoint({"steps", "jobs", "callbacks"}) or (
        body.get("type") in _KINDS and "args" not in body
    )


def _array(body: Mapping[str, Any], path: str, field: str) -> Sequence[object]:
    given = body.get(field)
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_JOBS:
        value = f"{len(given):,} elements" if isinstance(given, list) else None
        raise _invalid(_at(path, field), f"must be an array of 1 to {MAX_JOBS} elements", shown=value or show(given))
    return given


def _require_no_time(path: str, body: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    for field in _REFUSED:
        if options.get(field) is not None or body.get(field) is not None:
            place = f"options.{field}" if options.get(field) is not None else field
            raise _invalid(_at(path, place), "must be left out: the workflow decides when its jobs run, and how often")


def _require_not_pending(path: str, body: Mapping[str, Any]) -> None:
    if (is_set := envelope.pending(body)) is not None:
        place, value = is_set
        raise _invalid(_at(path, place), envelope.PENDING, value)


def _options(body: Mapping[str, Any], path: str = "") -> Mapping[str, Any]:
    options = body.get("options")
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise _invalid(_at(path, "options"), "must be an object", options)
    return options


def _text(body: Mapping[str, Any], path: str, field: str) -> str | None:
    text = body.get(field)
    if text is None:
        return None
    if not isinstance(text, str) or len(text) > MAX_NAME_LENGTH or text_problem(text):
        raise _invalid(_at(path, field), f"must be a text of at most {MAX_NAME_LENGTH} characters", text)
    return text


def _at(path: str, field: str | None) -> str:
    return ".".join(part for part in (path, field) if part)


def _below(key: str, member: str) -> str:
    return f"{key}-{member}" if key else member


_ABSENT: Final = object()


def _invalid(field: str, right: str | None, value: object = _ABSENT, *, shown: str | None = None) -> Problem:
    """Return the answer to an invalid field, also in the form of ojs-workflows §11.1."""
    text = show(value) if value is not _ABSENT else shown
    requirement = right or "is invalid"
    detail = f"`{field}` is {text}: {requirement}" if text is not None else f"`{field}` {requirement}"
    facts: dict[str, JsonValue] = {"validation_errors": [{"path": f"$.{field}", "message": requirement}]}
    return Problem(
        400, "invalid-workflow", detail, (FieldError(field=field, value=text, right=requirement),), facts=facts
    )
