"""The status of a container, as its Job and its pods show it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

STUCK: Final = frozenset(
    {
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
        *("ErrImageNeverPull", "ErrImagePull", "ImageInspectError"),
        *("ImagePullBackOff", "InvalidImageName", "RegistryUnavailable"),
    }
)
"""Reasons for which a container waits that seldom end by themselves."""
NO_POD: Final = "NoPod"
DEADLINE: Final = "DeadlineExceeded"
_MAX_REASON: Final = 128
"""Characters of a reason, which is a word of Kubernetes."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a container."""

    exit_code: int | None
    """None: the container did not end by itself, and `reason` says more."""
    reason: str
    """As Kubernetes writes it, such as `OOMKilled` or `Evicted`."""
    message: str = ""
    """As the container or the node wrote it, of any length, and perhaps with secrets."""


@dataclass(frozen=True, slots=True)
class Status:
    """A container at one moment."""

    pod: str | None = None
    """The name of its pod."""
    has_begun: bool = False
    """It runs or ran, so there is a log."""
    waits_for: str | None = None
    """The reason for which it has not begun."""
    message: str = ""
    end: End | None = None


def read_status(job: Mapping[str, Any], pods: Iterable[Mapping[str, Any]], container: str) -> Status:
    """Return the status of a container in the newest pod of a Job."""
    pod = max(pods, key=lambda each: str(part_of(each, "metadata").get("creationTimestamp")), default=None)
    status = Status(waits_for=NO_POD) if pod is None else _pod_status(pod, container)
    return replace(status, end=_end(job, status.end))


def is_finished(job: Mapping[str, Any]) -> bool:
    """Return whether no pod of a Job runs any more."""
    if part_of(job, "status").get("terminating"):  # before Kubernetes 1.31, a Job failed before its pods had ended
        return False
    return _condition(job, "Complete") is not None or _condition(job, "Failed") is not None


def is_deleted(job: Mapping[str, Any]) -> bool:
    """Return whether a Job is being deleted."""
    return part_of(job, "metadata").get("deletionTimestamp") is not None


def _end(job: Mapping[str, Any], of_pod: End | None) -> End | None:
    failed = _condition(job, "Failed")
    # Kubernetes decides that a Job fails, ends its pods, and adds `Failed` after their end.
    cause = failed if of_pod is None else failed or _condition(job, "FailureTarget")
    if cause is not None and cause.get("reason") == DEADLINE and (of_pod is None or of_pod.exit_code != 0):
        return End(None, DEADLINE, _text(cause.get("message")))
    if of_pod is not None:
        return of_pod
    if failed is not None:
        return End(None, _reason(failed) or "Failed", _text(failed.get("message")))
    return End(0, "Completed") if _condition(job, "Complete") is not None else None


def _pod_status(pod: Mapping[str, Any], container: str) -> Status:
    status, name = part_of(pod, "status"), str(part_of(pod, "metadata").get("name"))
    states = [part_of(each, "state") for each in items_of(status, "containerStatuses") if each.get("name") == container]
    state = states[0] if states else {}
    if terminated := part_of(state, "terminated"):
        return Status(name, has_begun=True, end=_terminated(pod, terminated))
    if status.get("phase") == "Failed":
        said = _text(status.get("message")) or "the pod ended before its container"
        return Status(name, end=End(None, _disruption(pod) or "Failed", said))
    if "running" in state:
        return Status(name, has_begun=True)
    waiting = part_of(state, "waiting")
    reason, message = _reason(waiting), waiting.get("message")
    scheduled = _condition(pod, "PodScheduled", "False")
    if not reason and scheduled is not None:
        reason, message = _reason(scheduled) or "Unschedulable", scheduled.get("message")
    return Status(name, waits_for=reason or "Pending", message=_text(message))


def _terminated(pod: Mapping[str, Any], terminated: Mapping[str, Any]) -> End:
    code = terminated.get("exitCode")
    exit_code = code if isinstance(code, int) else 1
    disruption = _disruption(pod) if exit_code else None
    reason = disruption or _reason(terminated)
    message = part_of(pod, "status").get("message") if disruption else terminated.get("message")
    return End(exit_code, reason, _text(message))


def _disruption(pod: Mapping[str, Any]) -> str | None:
    """Return why Kubernetes ended a pod, such as `Evicted` or `PreemptionByScheduler`."""
    return _reason(part_of(pod, "status")) or _reason(_condition(pod, "DisruptionTarget") or {}) or None


def _condition(thing: Mapping[str, Any], kind: str, status: str = "True") -> Mapping[str, Any] | None:
    conditions = items_of(part_of(thing, "status"), "conditions")
    return next((each for each in conditions if each.get("type") == kind and each.get("status") == status), None)


def uid_of(thing: Mapping[str, Any]) -> str:
    """Return the uid of an object; empty if it has none."""
    return str(part_of(thing, "metadata").get("uid") or "")


def items_of(thing: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return the objects in a list of an object, as far as it has them."""
    items = thing.get(name)
    return [each for each in items if isinstance(each, Mapping)] if isinstance(items, list) else []


def part_of(thing: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a part of an object; empty if it has no such part."""
    part = thing.get(name)
    return part if isinstance(part, Mapping) else {}


def _reason(thing: Mapping[str, Any]) -> str:
    return str(thing.get("reason") or "")[:_MAX_REASON]


def _text(written: object) -> str:
    return str(written or "").strip()
