"""The Job of Kubernetes that runs a container.

Its name is made of the execution, the step and the attempt, so that a second delivery of the attempt meets the Job of the first.
"""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from ...domain.definition import DefinitionProblem
from ...domain.definition.container_work import Container
from ...domain.yaml_fault import fault_of
from ...settings import SettingsError
from ..builtin_call import BuiltinFailure
from ..context import Context
from .pod_status import part_of

NOT_ALLOWED: Final = "container_not_allowed"
ATTEMPT: Final = "tocsin/attempt"
WORK: Final = "tocsin/work"
IDENTITY: Final = "tocsin/identity"
_DEFAULT_CONTAINER: Final = "main"
_LONGEST_DEADLINE_S: Final = 2**31 - 1
_POD_SECURITY: Final = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
_CONTAINER_SECURITY: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_TEMPLATE_FIELDS: Final = frozenset({"apiVersion", "kind", "metadata", "spec"})
_FILLED: Final = ("image", "command", "args")
_TEMPLATE_MAPPINGS: Final[Mapping[str, Any]] = {
    "metadata": {"labels": {}, "annotations": {}},
    "spec": {"securityContext": {}},
}
"""Mappings of a pod template to which the Job adds its own values."""
_CONTAINER_MAPPINGS: Final[Mapping[str, Any]] = {"securityContext": {}, "resources": {"requests": {}, "limits": {}}}


@dataclass(frozen=True, slots=True)
class Order:
    """A container with every value decided."""

    work: Container
    image: str
    namespace: str
    command: Sequence[str]
    args: Sequence[str]
    env: Mapping[str, str]
    secrets: Mapping[str, str] = field(repr=False)
    """Variables that everyone who may read the Job must not see."""
    template: Mapping[str, Any]


def read_template(name: str, path: str) -> dict[str, Any]:
    """Return the pod template in a file, or raise `SettingsError`."""
    field_name = f"builtin.container.templates.{name}"
    try:
        written = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(DefinitionProblem(f"{error}", field=field_name, code="file-unreadable")) from None
    except (ValueError, KeyError, yaml.YAMLError) as error:
        reason = f"{path} is not YAML: {fault_of(error)}"
        raise SettingsError(DefinitionProblem(reason, field=field_name, code="file-unreadable")) from None
    if problem := _template_problem(written):
        raise SettingsError(DefinitionProblem(f"{path}: {problem}", field=field_name))
    return dict(written)


def job_name(context: Context) -> str:
    """Return the name of the Job of an attempt."""
    slug = re.sub(r"[^a-z0-9]+", "-", context.job)[:30].strip("-")
    return f"{slug}-{_digest(_identity(context))[:24]}"


def work_digest(context: Context) -> str:
    """Return what the Jobs of all attempts of a step have in common."""
    return _digest(f"{context.execution_id}\n{context.step}")[:40]


def is_own(job: Mapping[str, Any], context: Context) -> bool:
    """Return whether a Job was made for an attempt."""
    annotations = part_of(part_of(job, "metadata"), "annotations")
    return bool(annotations.get(IDENTITY) == _identity(context))


def job_manifest(order: Order, context: Context, *, timeout: float, keep: float) -> dict[str, Any]:
    """Return the Job, which ends after `timeout`, and stays for `keep` seconds then."""
    name = job_name(context)
    labels = _labels(context)
    annotations = {IDENTITY: _identity(context), "tocsin/job": context.job}
    metadata = order.template.get("metadata") or {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": order.namespace, "labels": labels, "annotations": annotations},
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "podReplacementPolicy": "Failed",
            "activeDeadlineSeconds": max(1, math.ceil(min(timeout, _LONGEST_DEADLINE_S))),
            "ttlSecondsAfterFinished": math.ceil(keep),
            "template": {
                "metadata": {
                    "labels": {**(metadata.get("labels") or {}), **labels},
                    "annotations": {**(metadata.get("annotations") or {}), **annotations},
                },
                "spec": _pod_spec(order, order.template.get("spec") or {}, name),
            },
        },
    }


def secret_manifest(order: Order, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Secret with the variables that the Job, its owner, must not show."""
    metadata = part_of(job, "metadata")
    name = metadata.get("name")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": metadata.get("uid")}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "immutable": True,
        "metadata": {
            "name": name,
            "namespace": order.namespace,
            "labels": metadata.get("labels") or {},
            "ownerReferences": [owner],
        },
        "stringData": dict(order.secrets),
    }


def container_name(template: Mapping[str, Any]) -> str:
    """Return the name of the container in the pod."""
    containers = (template.get("spec") or {}).get("containers") or [{}]
    return str(containers[0].get("name") or _DEFAULT_CONTAINER)


def _pod_spec(order: Order, spec: Mapping[str, Any], secret: str) -> dict[str, Any]:
    work, [own] = order.work, spec.get("containers") or [{}]
    defaults = {"automountServiceAccountToken": False, "enableServiceLinks": False}
    spec = {**defaults, **spec, "restartPolicy": "Never", "terminationGracePeriodSeconds": math.ceil(work.grace)}
    if work.service_account is not None:
        spec["serviceAccountName"] = work.service_account
    spec["securityContext"] = {**_POD_SECURITY, **(spec.get("securityContext") or {})}
    container = {
        **own,
        "name": container_name(order.template),
        "image": order.image,
        "env": _variables(order, own.get("env") or [], secret),
        "securityContext": {**_CONTAINER_SECURITY, **(own.get("securityContext") or {})},
    }
    for name, words in (("command", order.command), ("args", order.args)):
        if words:
            container[name] = [_literal(word) for word in words]
    if resources := _resources(work, own.get("resources") or {}):
        container["resources"] = resources
    return {**spec, "containers": [container]}


def _variables(order: Order, own: Sequence[Mapping[str, Any]], secret: str) -> list[dict[str, Any]]:
    taken = {str(each.get("name")) for each in own} & (order.env.keys() | order.secrets.keys())
    if taken:
        message = f"the pod template of this worker sets the variable {min(taken)}, which a job must not change"
        raise BuiltinFailure(NOT_ALLOWED, message)
    return [
        *map(dict, own),
        *({"name": name, "value": _literal(value)} for name, value in order.env.items()),
        *({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}} for name in order.secrets),
    ]


def _resources(work: Container, own: Mapping[str, Any]) -> dict[str, Any]:
    written = {"requests": dict(work.resources.requests), "limits": dict(work.resources.limits)}
    merged = {kind: {**(own.get(kind) or {}), **amounts} for kind, amounts in written.items()}
    return {**own, **{kind: amounts for kind, amounts in merged.items() if amounts}}


def _literal(text: str) -> str:
    # `$(NAME)` in a value would become a variable, which may be a secret.
    return text.replace("$", "$$")


def _labels(context: Context) -> dict[str, str]:
    return {
        "app.kubernetes.io/managed-by": "tocsin",
        "tocsin/job": _label(context.job),
        "tocsin/execution-id": _label(context.execution_id),
        "tocsin/step": _label(context.step),
        ATTEMPT: str(context.attempt),
        WORK: work_digest(context),
    }


def _label(text: str) -> str:
    """Return the beginning of a text, which the annotations have in full, for a label."""
    return re.sub(r"[^A-Za-z0-9_.\-]", "_", text)[:63].strip("-_.")


def _identity(context: Context) -> str:
    return f"{context.execution_id}\n{context.step}\n{context.attempt}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _template_problem(written: object) -> str | None:
    if not isinstance(written, dict):
        return "must be a mapping with `spec`, that of a pod"
    if unknown := written.keys() - _TEMPLATE_FIELDS:
        return f"has {min(map(str, unknown))!r}, and a pod template has `metadata` and `spec`"
    if wrong := _wrong_mapping(written, _TEMPLATE_MAPPINGS):
        return f"`{wrong}` must be a mapping"
    containers = (written.get("spec") or {}).get("containers") or [{}]
    if not isinstance(containers, list) or len(containers) != 1 or not isinstance(containers[0], dict):
        return "must have one container at most, which the job fills; write others as `initContainers`"
    return _container_problem(containers[0])


def _container_problem(own: Mapping[str, Any]) -> str | None:
    if filled := [name for name in _FILLED if name in own]:
        return f"the container has `{filled[0]}`, which the job says; leave it out"
    if wrong := _wrong_mapping(own, _CONTAINER_MAPPINGS):
        return f"`{wrong}` of the container must be a mapping"
    variables = own.get("env") or []
    if not isinstance(variables, list) or not all(isinstance(each, dict) for each in variables):
        return "`env` of the container must be a list of mappings with `name` and `value`"
    return None


def _wrong_mapping(written: Mapping[str, Any], mappings: Mapping[str, Any]) -> str | None:
    """Return the path of the first part that is not a mapping; None: all are."""
    for name, inner in mappings.items():
        part = written.get(name) or {}
        if not isinstance(part, dict):
            return name
        if wrong := _wrong_mapping(part, inner):
            return f"{name}.{wrong}"
    return None
