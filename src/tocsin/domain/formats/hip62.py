"""The job registry of hip-62: `schedule`, `function` or `dag`, `retry`, `lock`.

Fields that hip-62 does not have (`overlap_policy`, `queue`, `catch_up`, …) are written under the names of the
definition. `lock: true` skips a run while another is active; `lock: false` and `concurrent: true` let runs overlap.
Without any of them the rule of ojs-cron §6.2 applies: skip; a job without a schedule waits (`enqueue`).
"""

from collections.abc import Mapping
from typing import Any, Final

from ..definition import DefinitionProblem, JobDefinition, RetryPolicy, Step, show
from .document import Document, Path

_JOB: Final = frozenset(JobDefinition.model_fields) | {"lock", "concurrent"}
_STEP: Final = frozenset(Step.model_fields) | {"step"}
_RETRY: Final = frozenset(RetryPolicy.model_fields)


def reading(written: Mapping[Any, object]) -> Document:
    """Read one job of a registry."""
    read = Document(spelled=_spelled)
    job = read.known(written, _JOB)
    for switch, locks in (("lock", True), ("concurrent", False)):
        if switch in job:
            _switch(read, job, switch, locks=locks)
    _retry(read, job)
    if isinstance(job.get("dag"), list | tuple):
        job["dag"] = [_step(read, step) if isinstance(step, Mapping) else step for step in job["dag"]]  # type: ignore[attr-defined]
    read.fields = job
    return read


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
        read.problems.append(
            DefinitionProblem("must be true or false", field=name, value=show(value), code="wrong-type")
        )
        return
    locked = value is locks
    policy = job.setdefault("overlap_policy", "skip" if locked else "allow")
    if locked is (policy == "allow"):
        reason = f"`overlap_policy` is {show(policy)}, which contradicts it: leave one of them out"
        read.problems.append(DefinitionProblem(reason, field=name, value=show(value), code="exclusive-fields"))


def _step(read: Document, written: Mapping[Any, object]) -> dict[str, object]:
    called = written.get("step", written.get("name"))
    name = called if isinstance(called, str) else None
    step = read.known(written, _STEP, step=name)
    if "step" in step and "name" in step:
        read.problems.append(
            DefinitionProblem(
                "is the same as `step`: leave one of them out", field="name", step=name, code="exclusive-fields"
            )
        )
    if "step" in step:
        step["name"] = step.pop("step")
    _retry(read, step, step=name)
    return step


def _retry(read: Document, owner: dict[str, object], *, step: str | None = None) -> None:
    if isinstance(policy := owner.get("retry"), Mapping):
        owner["retry"] = read.known(policy, _RETRY, under="retry.", step=step)
