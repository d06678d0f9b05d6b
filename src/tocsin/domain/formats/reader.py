"""Reading of job documents: detection of the format, hip-62's spelling, and all problems at once.

Besides, a job may be written as the Open Job Spec (`ojs`) or ScratchBird's scheduler (`scratchbird`) do.

Fields that hip-62 does not have (`overlap_policy`, `queue`, `catch_up`, …) are written under the names of the
definition. `lock: true` skips a run while another is active; `lock: false` and `concurrent: true` let runs overlap.
Without any of them the rule of ojs-cron §6.2 applies: skip; a job without a schedule waits (`enqueue`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ..definition import (
    MAX_PROBLEMS,
    DefinitionError,
    DefinitionProblem,
    JobDefinition,
    RetryPolicy,
    Step,
    shorten,
    show,
)
from . import ojs, scratchbird
from .document import Document, Path

_JOB: Final = frozenset(JobDefinition.model_fields) | {"lock", "concurrent"}
_STEP: Final = frozenset(Step.model_fields) | {"step"}
_RETRY: Final = frozenset(RetryPolicy.model_fields)
MAX_VALUES: Final = 50_000
"""Values of a job outside its inputs: each may be invalid by itself, and cost the memory of a problem."""
_INPUTS: Final = frozenset({"input", "args", "bind", "meta", "input_schema"})


def reading(written: Mapping[Any, object]) -> Document:
    document = Document(spelled=_spelled)
    job = document.known(written, _JOB)
    for switch, locks in (("lock", True), ("concurrent", False)):
        if switch in job:
            _switch(document, job, switch, locks=locks)
    _retry(document, job)
    if isinstance(job.get("dag"), list | tuple):
        job["dag"] = [_step(document, step) if isinstance(step, Mapping) else step for step in job["dag"]]  # type: ignore[attr-defined]
    document.fields = job
    return document


def _spelled(path: Path) -> Path:
    """Return the path in the document; a step's name is written as `step`."""
    match path:
        case ("dag", "name"):
            return ("step",)
        case ("dag", str(), *_):
            return path[1:]
        case _:
            return path


def _switch(read: Document, job: dict[str, object], name: str, *, locks: bool) -> None:
    """Read `lock`, or its opposite `concurrent`, as an overlap policy."""
    value = job.pop(name)
    if not isinstance(value, bool):
        read.wrong(name, value, "must be true or false", code="wrong-type")
        return
    locked = value is locks
    policy = job.setdefault("overlap_policy", "skip" if locked else "allow")
    if locked is (policy == "allow"):
        reason = f"`overlap_policy` is {show(policy)}, which contradicts it: leave one of them out"
        read.wrong(name, value, reason, code="exclusive-fields")


def _step(read: Document, written: Mapping[Any, object]) -> dict[str, object]:
    called = written.get("step", written.get("name"))
    name = called if isinstance(called, str) else None
    step = read.known(written, _STEP, step=name)
    if "step" in step and "name" in step:
        reason = "is the same as `step`: leave one of them out"
        read.problems.append(DefinitionProblem(reason, field="name", step=name, code="exclusive-fields"))
    if "step" in step:
        step["name"] = step.pop("step")
    _retry(read, step, step=name)
    return step


def _retry(read: Document, owner: dict[str, object], *, step: str | None = None) -> None:
    if isinstance(policy := owner.get("retry"), Mapping):
        owner["retry"] = read.known(policy, _RETRY, under="retry.", step=step)


_LISTS: Final = ("jobs", "cron_jobs")
NO_CALENDARS: Final[Mapping[str, Mapping[str, object]]] = {}
_CALENDARS: Final = ("exclude", "only")
"""The fields of a job that name calendars."""
_MISSPELT_LISTS: Final = frozenset({"job", "Jobs", "tasks", "schedules", "crons", "cronjobs", "cron_job", "cronJobs"})
"""A document with only such a key is meant as a list, and is not one job without a name."""
_OJS: Final = frozenset({"cron", "type", "expression", "job_template"})
_HIP62: Final = frozenset({"schedule", "function", "dag"})
_SCHEDULED_WORK: Final = frozenset({"schedule", "dag"})
"""Fields of hip-62 that a job of ScratchBird cannot have."""


def read(
    document: object,
    source: str | None = None,
    *,
    calendars: Mapping[str, Mapping[str, object]] = NO_CALENDARS,
    connection: str | None = None,
) -> tuple[JobDefinition, ...]:
    """Return the definitions in a document, each in the format of hip-62, ojs-cron or ScratchBird.

    A document is a mapping with `jobs`, a list of jobs, or one job. Beside `jobs`, keys that begin with `x-` (a place
    for YAML anchors) and `$schema` are ignored, and so is `calendars`, which the reader of files resolves.

    `source`: the file, for the problems. `calendars`: for jobs to name. `connection`: as of `read_job`.

    Raises:
        DefinitionError: with the problems of all jobs.
    """
    jobs, problems = _entries(document)
    definitions: list[tuple[str, JobDefinition]] = []
    for place, entry in jobs:
        written = with_calendars(entry, calendars) if calendars and isinstance(entry, Mapping) else entry
        try:
            definitions.append((place, read_job(written, place, connection=connection)))
        except DefinitionError as error:
            problems.extend(error.problems)
        if len(problems) > MAX_PROBLEMS:
            break
    problems.extend(_duplicates(definitions))
    if problems:
        raise DefinitionError(*(replace(problem, source=source) for problem in problems))
    return tuple(definition for _, definition in definitions)


def with_calendars(
    written: Mapping[str, object], calendars: Mapping[str, Mapping[str, object]]
) -> Mapping[str, object]:
    """Return the fields of a job with the dates of the calendars that it names."""
    named = {field: value for field in _CALENDARS if isinstance(value := written.get(field), list | tuple)}
    found = {
        field: [calendars.get(name, name) if isinstance(name, str) else name for name in names]
        for field, names in named.items()
    }
    return {**written, **found}


def read_job(written: object, place: str | None = None, *, connection: str | None = None) -> JobDefinition:
    """Return the definition of one job.

    `place`: its place, e.g. `jobs[2]`, for a job without a usable name. `connection`: the connection of ScratchBird's
    `job_sql` and `procedure` that name none; None: they must.

    Raises:
        DefinitionError: with all problems.
    """
    if not isinstance(written, Mapping):
        reason = f"a job is a mapping, and this is {show(written)}"
        raise DefinitionError(DefinitionProblem(reason, job=place, code="wrong-type"))
    if _count(written) > MAX_VALUES:
        reason = f"more than {MAX_VALUES:,} values outside its inputs: divide the job"
        raise DefinitionError(DefinitionProblem(reason, job=place, code="too-large"))
    if "apiVersion" in written and "kind" in written:
        kind = f"a manifest of Kubernetes ({show(written['kind'])}), and not a job"
        reason = f"{kind}: `tocsin import kubernetes FILE` writes the jobs of CronJobs"
        raise DefinitionError(DefinitionProblem(reason, job=place, code="kubernetes-manifest"))
    try:
        return _reading({name: value for name, value in written.items() if name != "$schema"}, connection).definition()
    except DefinitionError as error:
        name = written.get("name")
        job = f"job `{shorten(name)}`" if isinstance(name, str) and name and name.isprintable() else place
        raise DefinitionError(*(replace(problem, job=job) for problem in error.problems)) from None


def _count(written: object) -> int:
    """Return the number of values outside inputs, or a number above `MAX_VALUES`."""
    count, unread = 0, [written]
    while unread and count <= MAX_VALUES:
        value = unread.pop()
        if isinstance(value, Mapping):
            value = [part for name, part in value.items() if name not in _INPUTS]
        if isinstance(value, list | tuple):
            count += len(value)
            unread += value
    return count


def refuse_duplicates(definitions: Iterable[tuple[str, JobDefinition]]) -> None:
    """Raise DefinitionError for each name that several places define, with them (CRON-01)."""
    if problems := _duplicates(definitions):
        raise DefinitionError(*problems)


def _duplicates(definitions: Iterable[tuple[str, JobDefinition]]) -> list[DefinitionProblem]:
    places: dict[str, list[str]] = {}
    for place, definition in definitions:
        places.setdefault(definition.name, []).append(place)
    several = {name: where for name, where in places.items() if len(where) > 1}
    reasons = {name: f"defined {len(where)} times: {' and '.join(where)}" for name, where in several.items()}
    return [DefinitionProblem(reason, job=f"job `{name}`", code="duplicate-name") for name, reason in reasons.items()]


def _reading(job: Mapping[Any, object], connection: str | None) -> Document:
    # A job with fields of several formats is read as hip-62, whose problems then name the fields.
    if not _OJS.isdisjoint(job):
        return ojs.reading(job) if _HIP62.isdisjoint(job) else reading(job)
    is_scratchbird = not scratchbird.MARKS.isdisjoint(job) and _SCHEDULED_WORK.isdisjoint(job)
    return scratchbird.reading(job, connection) if is_scratchbird else reading(job)


def _entries(document: object) -> tuple[list[tuple[str, object]], list[DefinitionProblem]]:
    match document:
        case None:
            return [], [DefinitionProblem("no jobs: the document is empty", code="empty-document")]
        case list() | tuple():
            return _numbered("", document), []
        case Mapping():
            return _wrapped(document)
        case _:
            reason = f"expected a mapping with `jobs`, a list of jobs or one job, and this is {show(document)}"
            return [], [DefinitionProblem(reason, code="wrong-type")]


def _wrapped(document: Mapping[Any, object]) -> tuple[list[tuple[str, object]], list[DefinitionProblem]]:
    key = next((key for key in _LISTS if key in document), None)
    if document.keys() == {"calendars"}:
        return [], []
    if key is None and document.keys() <= _MISSPELT_LISTS and document:
        return [], [DefinitionProblem(", did you mean `jobs`?", field=shorten(next(iter(document))), unknown=True)]
    if key is None:
        return [("the job", document)], []
    beside = {name: value for name, value in document.items() if not str(name).startswith(("x-", "$schema"))}
    if key == "cron_jobs":
        beside.pop("count", None)  # the listing of ojs-cron §8.2 can be read back unchanged
    beside.pop("calendars", None)
    inner = Document(spelled=lambda path: path)
    jobs = inner.known(beside, {key})[key]
    if not isinstance(jobs, list | tuple):
        inner.wrong(key, jobs, "must be a list of jobs", code="wrong-type")
        return [], inner.problems
    return _numbered(key, jobs), inner.problems


def _numbered(key: str, jobs: Sequence[object]) -> list[tuple[str, object]]:
    return [(f"{key}[{index}]", job) for index, job in enumerate(jobs)]
