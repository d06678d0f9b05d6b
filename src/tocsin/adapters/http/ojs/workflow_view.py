"""Show an execution as a workflow of the Open Job Spec (ojs-workflows §8, §9.6, §11)."""

from typing import Final

from pydantic import JsonValue

from ....domain import execution
from ....domain.definition import size_of
from ....domain.events import Requested, Workflow, WorkflowNode, newest_of
from ....domain.execution import MAX_UPSTREAM_BYTES, Execution, Status
from ....domain.execution.workflow import Outcome, Walk, callbacks, parents, result
from . import job_view
from .job_view import Facts, Json, instant

_STATES: Final = {
    Status.UNKNOWN: "pending",
    Status.ADMITTED: "running",
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
}
_STEP_STATES: Final = {
    "pending": "waiting",
    "available": "pending",
    "retryable": "pending",
    "active": "active",
    "completed": "completed",
    "discarded": "failed",
    "cancelled": "cancelled",
}
"""State of a job -> state of a step (ojs-workflows §4.4)."""
_OUTCOMES: Final = {Outcome.OPEN: "running", Outcome.COMPLETED: "completed", Outcome.FAILED: "failed"}
SUMMARY: Final = ("id", "type", "name", "state", "metadata")
"""Fields that an answer has beside `workflow` too, where the official JavaScript SDK reads them."""


def answer(facts: Facts, **more: object) -> Json:
    """Return an execution as a workflow."""
    shown = {**_View(facts).show(), **more}
    return {"workflow": shown, **{field: shown[field] for field in SUMMARY}}


def jobs_of(facts: Facts) -> list[Json]:
    """Return the jobs of a workflow, with callbacks, as its steps show them."""
    view = _View(facts)
    return [view.step(name) for name in view.planned]


def parent_results(state: Execution, step: str) -> Json:
    """Return the fields on the results of the jobs before a job (ojs-workflows §7).

    They are in the order of these jobs. Together they have at most `MAX_UPSTREAM_BYTES`. The oldest beyond that are null, and `parent_results_left_out` names them.
    """
    tree = job_view.workflow_of(state.request.plan)
    if tree is None:
        return {}
    planned = {step.name: step for step in state.request.plan.steps}
    members = parents(tree, planned, step)
    results: list[JsonValue] = [result(tree, state.steps, name) for name in members]
    size, left_out = 0, list[int]()
    for index in reversed(range(len(results))):
        size += size_of(results[index])
        if size > MAX_UPSTREAM_BYTES:
            results[index] = None
            left_out.insert(0, index)
    return {"parent_results": results, **({"parent_results_left_out": left_out} if left_out else {})}


class _View:
    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.state = execution.fold(facts)
        tree = job_view.workflow_of(self.state.request.plan)
        if tree is None:
            raise LookupError("the execution is no workflow")
        self.tree: Workflow = tree
        self.nodes = {node.key: node for node in tree.nodes}
        self.planned = {step.name: step for step in self.state.request.plan.steps}
        self.jobs = {name: job_view.job(facts, step=name, state=self.state) for name in self.planned}
        self.walk = Walk(tree, self.planned, self.state.steps)
        self.callbacks = {step: kind for node in tree.nodes for kind, step in callbacks(node).items()}

    def show(self) -> Json:
        root = self.tree.nodes[0]
        noun = "jobs" if root.kind in {"group", "batch"} else "steps"
        completed = sum(self.walk.outcomes.get(name) is Outcome.COMPLETED for name in root.members)
        metadata = self._metadata(root)
        return {
            "id": self.state.request.execution_id,
            "type": root.kind,
            "name": root.name,
            "state": _STATES[self.state.status],
            **({} if self.state.request.replay_of is None else {"retry_of": self.state.request.replay_of}),
            f"{noun}_total": len(root.members),
            f"{noun}_completed": completed,
            **self._members(root),
            "created_at": metadata["created_at"],
            **{field: metadata[field] for field in ("completed_at", "cancelled_at") if field in metadata},
            "metadata": metadata,
        }

    def _members(self, node: WorkflowNode) -> Json:
        if self.tree.names_steps:
            steps = [{**self._entry(name), "id": name} for name in self.planned]
            return {"steps": [{"index": index, **step} for index, step in enumerate(steps)]}
        members = [{"index": index, **self._entry(name)} for index, name in enumerate(node.members)]
        called = {kind: self._entry(name) for kind, name in callbacks(node).items()}
        return {"steps" if node.kind == "chain" else "jobs": members, **({"callbacks": called} if called else {})}

    def _entry(self, name: str) -> Json:
        node = self.nodes.get(name)
        return self.step(name) if node is None else self._nested(node)

    def _nested(self, node: WorkflowNode) -> Json:
        outcome = self.walk.outcomes.get(node.key)
        state = "waiting" if outcome is None else _OUTCOMES[outcome]
        if self.state.is_over and state in {"waiting", "running"}:
            state = "cancelled"
        given = {"id": node.id, "name": node.name}
        return {
            "type": node.kind,
            **{field: value for field, value in given.items() if value is not None},
            "state": state,
            **self._members(node),
        }

    def step(self, name: str) -> Json:
        job = self.jobs[name]
        state = _STEP_STATES[job["state"]]
        is_enqueued = self.state.steps[name].attempt > 0
        extra = {"depends_on": list(self.planned[name].depends_on)} if self.tree.names_steps else {}
        fields = ("attempt", "result", "error", "started_at", "completed_at", "cancelled_at", "next_attempt_at")
        return {
            "type": job["type"],
            "state": state,
            "job_id": job["id"] if is_enqueued else None,
            "queue": job["queue"],
            **extra,
            **{field: job[field] for field in fields if field in job},
        }

    def _metadata(self, root: WorkflowNode) -> Json:
        requested = newest_of(self.facts, Requested)
        counted = [job for name, job in self.jobs.items() if name not in self.callbacks]
        started = [job["started_at"] for job in self.jobs.values() if "started_at" in job]
        created = self.facts[0].time if requested is None else requested.time
        ended = {Status.CANCELLED: "cancelled_at"}.get(self.state.status, "completed_at")
        failures = [self._failure(name, job) for name, job in self.jobs.items() if job["state"] == "discarded"]
        metadata: Json = {
            "created_at": instant(created),
            **({"started_at": min(started)} if started else {}),
            **({ended: instant(self.facts[-1].time)} if self.state.is_over else {}),
            "job_count": len(counted),
            "completed_count": sum(job["state"] == "completed" for job in counted),
            "failed_count": sum(job["state"] == "discarded" for job in counted),
        }
        if failures:
            metadata |= {"failed_job_ids": [failure["job_id"] for failure in failures], "errors": failures}
        if root.kind == "chain":
            failed = [i for i, name in enumerate(root.members) if self.walk.outcomes.get(name) is Outcome.FAILED]
            metadata |= {"failed_step_index": failed[0]} if failed else {}
        return metadata

    def _failure(self, name: str, job: Json) -> Json:
        error = job.get("error") or {"code": "unknown", "message": "", "attempt": job["attempt"]}
        callback = {"callback": self.callbacks[name]} if name in self.callbacks else {}
        return {"job_id": job["id"], **callback, **error}
