"""The status of a container, as its Job and its pods show it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

STUCK: Final = frozenset(
    {
        *(
            "CreateContainerConfigError",
            "CreateContainerError",
            "ErrImageNeverPull",
            "ErrImagePull",
            "ImageInspectError",
        ),
        *("ImagePullBackOff", "InvalidImageName", "RegistryUnavailable", "RunContainerError"),
    }
)
"""Reasons for which a container waits that seldom end by themselves."""
NO_POD: Final = "NoPod"
DEADLINE: Final = "DeadlineExceeded"
_MAX_MESSAGE: Final = 1_024


@dataclass(frozen=True, slots=True)
class End:
    """The end of a container."""

    exit_code: int | None
    """None: the container did not end by itself, and `reason` says more."""
    reason: str
    """As Kubernetes writes it, such as `OOMKilled` or `Evicted`."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """A container at one moment."""

    pod: str | None
    """The name of its pod."""
    has_begun: bool
    """It runs or ran, so there is a log."""
    waits_for: str | None
    """The reason for which it has not begun."""
    message: str
    end: End | None


def read_status(job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], container: str) -> Status:
    """Return the status of a container in the newest pod of a Job."""
    pod = max(pods, key=lambda each: str(_of(each, "metadata").get("creationTimestamp")), default=None)
    status = Status(None, has_begun=False, waits_for=NO_POD, message="", end=None)
    if pod is not None:
        status = _pod_status(pod, container)
    return Status(status.pod, status.has_begun, status.waits_for, status.message, _end(job, status.end))


def is_finished(job: Mapping[str, Any]) -> bool:
    """Return whether no pod of a Job runs any more."""
    return _condition(job, "Complete") is not None or _condition(job, "Failed") is not None


def is_deleted(job: Mapping[str, Any]) -> bool:
    """Return whether a Job is being deleted."""
    return _of(job, "metadata").get("deletionTimestamp") is not None


def _end(job: Mapping[str, Any], of_pod: End | None) -> End | None:
    failed = _condition(job, "Failed")
    if failed is not None and failed.get("reason") == DEADLINE and (of_pod is None or of_pod.exit_code != 0):
        return End(None, DEADLINE, _text(failed.get("message")))
    if of_pod is not None:
        return of_pod
    if failed is not None:
        return End(None, str(failed.get("reason") or "Failed"), _text(failed.get("message")))
    return End(0, "Completed") if _condition(job, "Complete") is not None else None


def _pod_status(pod: Mapping[str, Any], container: str) -> Status:
    status, name = _of(pod, "status"), str(_of(pod, "metadata").get("name"))
    states = [_of(each, "state") for each in _items(status, "containerStatuses") if each.get("name") == container]
    state = states[0] if states else {}
    if terminated := _of(state, "terminated"):
        return Status(name, has_begun=True, waits_for=None, message="", end=_terminated(pod, terminated))
    if status.get("phase") == "Failed":
        end = End(
            None, _disruption(pod) or "Failed", _text(status.get("message")) or "the pod ended before its container"
        )
        return Status(name, has_begun=False, waits_for=None, message="", end=end)
    if "running" in state:
        return Status(name, has_begun=True, waits_for=None, message="", end=None)
    waiting = _of(state, "waiting")
    reason, message = str(waiting.get("reason") or ""), waiting.get("message")
    scheduled = _condition(pod, "PodScheduled", "False")
    if not reason and scheduled is not None:
        reason, message = str(scheduled.get("reason") or "Unschedulable"), scheduled.get("message")
    return Status(name, has_begun=False, waits_for=reason or "Pending", message=_text(message), end=None)


def _terminated(pod: Mapping[str, Any], terminated: Mapping[str, Any]) -> End:
    code = terminated.get("exitCode")
    exit_code = code if isinstance(code, int) else 1
    disruption = _disruption(pod) if exit_code else None
    reason = disruption or str(terminated.get("reason") or "")
    message = _of(pod, "status").get("message") if disruption else terminated.get("message")
    return End(exit_code, reason, _text(message))


def _disruption(pod: Mapping[str, Any]) -> str | None:
    """Return why Kubernetes ended a pod, such as `Evicted` or `PreemptionByScheduler`."""
    reason = _of(pod, "status").get("reason") or (_condition(pod, "DisruptionTarget") or {}).get("reason")
    return str(reason) if reason else None


def _condition(thing: Mapping[str, Any], kind: str, status: str = "True") -> Mapping[str, Any] | None:
    conditions = _items(_of(thing, "status"), "conditions")
    return next((each for each in conditions if each.get("type") == kind and each.get("status") == status), None)


def _items(thing: Mapping[str, Any], name: str) -> Iterable[Mapping[str, Any]]:
    items = thing.get(name)
    return [each for each in items if isinstance(each, Mapping)] if isinstance(items, list) else []


def _of(thing: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = thing.get(name)
    return part if isinstance(part, Mapping) else {}


def _text(written: object) -> str:
    return str(written or "").strip()[:_MAX_MESSAGE]
