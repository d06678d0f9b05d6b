"""Containers of a pod as the work of a job, or of its steps."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import JsonValue, TypeAdapter, ValidationError

from ...domain.definition.builtin_work import MAX_SPECIFICATION_BYTES
from ...domain.definition.command import LONGEST_GRACE_S
from ...domain.definition.container_work import KubernetesName, Quantity
from ...domain.definition.image import ImageError, read_image
from .commands import allowed_variables, argument, worker_note
from .drafts import Draft, Names, StepDraft, function_name
from .manifests import Manifest, mapping_of, report_rest, text_of

MAX_CONTAINERS: Final = 100
_CONTAINER: Final = frozenset(
    {
        *("name", "image", "command", "args", "env", "resources"),
        *("imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy"),
    }
)
"""Fields that are read, or that concern only the image and the pod's end."""
_POD: Final = frozenset(
    {
        *("containers", "initContainers", "restartPolicy", "activeDeadlineSeconds", "serviceAccountName"),
        *("serviceAccount", "terminationGracePeriodSeconds", "dnsPolicy", "schedulerName"),
    }
)
_USUAL: Final = {
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
"""Defaults that the API server fills in."""
_TEMPLATE: Final = "write it into a pod template of the worker"
_REFERENCE: Final = re.compile(r"\$(?:\$|\((?P<name>[^()]*)\))")
_NAME: Final[TypeAdapter[str]] = TypeAdapter(KubernetesName)
_QUANTITY: Final[TypeAdapter[str]] = TypeAdapter(Quantity)
_RESOURCES: Final = frozenset({"cpu", "memory", "ephemeral-storage"})


def set_containers(draft: Draft, pod: Mapping[str, Any], namespace: str) -> None:
    """Set the work of a job from the pod of its template."""
    described = Manifest(draft, "pod")
    first, together = described.mappings(pod, "initContainers"), described.mappings(pod, "containers")
    report_rest(draft, "pod", pod, _POD - _unusual(pod), instead=_TEMPLATE)
    if len(first) + len(together) > MAX_CONTAINERS:
        draft.add("field-not-supported", f"the pod has more than {MAX_CONTAINERS} containers: the others are not read")
        first, together = first[:MAX_CONTAINERS], together[: max(0, MAX_CONTAINERS - len(first))]
    if not together:
        draft.add("entry-not-readable", "the pod has no containers")
        draft.fields["function"] = function_name(draft.wish)
        return
    shared = _of_pod(described, pod, namespace)
    if len(together) == 1 and not first:
        draft.fields["container"] = _container(draft, together[0], shared)
        return
    draft.add("containers-as-steps", "steps share no volume and no network: hand data over by results or a store")
    names = Names(of_steps=True)
    before: list[str] = []
    for container in first:
        before = [_add_step(draft, container, shared, names, before)]
    for container in together:
        _add_step(draft, container, shared, names, before)


def settings_note(drafts: list[Draft]) -> str | None:
    """Return the settings that some containers need; None: there are no containers."""
    works = list(_containers(drafts))
    if not works:
        return None
    namespaces = {work.get("namespace", "default") for work in works}
    images = {repository for work in works if (repository := _repository(work["image"]))}
    accounts = {work["service_account"] for work in works if "service_account" in work}
    return worker_note(
        "container",
        namespaces=sorted(
            namespaces, key=lambda name: (name != "default", name)
        ),  # the first is that of jobs without one
        images=sorted(images),
        service_accounts=sorted(accounts),
    )


def _containers(drafts: list[Draft]) -> Iterator[Mapping[str, Any]]:
    for draft in drafts:
        for fields in (draft.fields, *(step.fields for step in draft.steps)):
            if isinstance(work := fields.get("container"), dict):
                yield work


def _repository(image: str) -> str | None:
    try:
        return read_image(image).repository
    except ImageError:
        return None


def _of_pod(described: Manifest, pod: Mapping[str, Any], namespace: str) -> dict[str, JsonValue]:
    shared: dict[str, JsonValue] = {}
    account = text_of(pod.get("serviceAccountName")) or text_of(pod.get("serviceAccount"))
    for field, name, text in (
        ("namespace", "metadata.namespace", namespace),
        ("service_account", "serviceAccountName", account),
    ):
        if _is_valid(_NAME, text):
            shared[field] = text
        elif text:
            described.lose(name, text)
    grace = described.seconds(pod, "terminationGracePeriodSeconds")
    if grace is not None and grace > LONGEST_GRACE_S:
        described.lose("terminationGracePeriodSeconds", grace)
    longest = int(LONGEST_GRACE_S)  # which is also the default of Kubernetes
    shared["grace"] = f"{longest if grace is None else min(grace, longest)}s"
    return shared


def _add_step(
    draft: Draft, container: Mapping[str, Any], shared: Mapping[str, JsonValue], names: Names, after: list[str]
) -> str:
    name = names.free(text_of(container.get("name")) or "container")
    names.take(name)
    fields: dict[str, JsonValue] = {"container": _container(draft, container, shared)}
    draft.steps.append(StepDraft(name, list(after), fields=fields))
    return name


def _container(draft: Draft, container: Mapping[str, Any], shared: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    path = f"container {text_of(container.get('name')) or '?'}"[:80]
    variables = _Variables.read(draft, path, container)
    work: dict[str, JsonValue] = {"image": text_of(container.get("image"))}
    for name in ("command", "args"):
        if words := Manifest(draft, path).items(container, name):
            work[name] = [argument(variables.expanded(text_of(word))) for word in words]
    if allowed := allowed_variables(draft, variables.values):
        work["env"] = {**allowed}
    if resources := _resources(Manifest(draft, f"{path}.resources"), mapping_of(container.get("resources"))):
        work["resources"] = resources
    report_rest(draft, path, container, _CONTAINER - _unusual(container), instead=_TEMPLATE)
    return {**work, **shared}


def _unusual(fields: Mapping[str, Any]) -> set[str]:
    usual = {**_USUAL, "imagePullPolicy": _usual_policy(text_of(fields.get("image")))}
    return {name for name, value in usual.items() if name in fields and fields[name] != value}


def _usual_policy(image: str) -> str:
    try:
        read = read_image(image)
    except ImageError:
        return "IfNotPresent"
    return "Always" if read.digest is None and read.tag in {None, "latest"} else "IfNotPresent"


def _resources(described: Manifest, written: Mapping[str, Any]) -> dict[str, JsonValue]:
    resources: dict[str, JsonValue] = {}
    for kind in ("requests", "limits"):
        part = Manifest(described.draft, f"{described.path}.{kind}")
        amounts = mapping_of(written.get(kind))
        known = {name: text_of(amounts[name]) for name in amounts if name in _RESOURCES}
        valid: dict[str, JsonValue] = {name: text for name, text in known.items() if _is_valid(_QUANTITY, text)}
        for name in (name for name in known if name not in valid):
            part.lose(name, amounts[name])
        report_rest(part.draft, part.path, amounts, _RESOURCES, instead=_TEMPLATE)
        if valid:
            resources[kind] = valid
    report_rest(described.draft, described.path, written, ("requests", "limits"), instead=_TEMPLATE)
    return resources


def _is_valid(rule: TypeAdapter[str], text: str) -> bool:
    try:
        rule.validate_python(text)
    except ValidationError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Variables:
    """The variables of a container, whose values the manifest has or not."""

    draft: Draft
    path: str
    values: dict[str, str]
    unknown: set[str]
    """Variables whose values are in other objects."""

    @classmethod
    def read(cls, draft: Draft, path: str, container: Mapping[str, Any]) -> "_Variables":
        """Return the variables; as in Kubernetes, a value may refer to those before it."""
        variables = cls(draft, path, {}, set())
        for variable in Manifest(draft, path).mappings(container, "env"):
            name = text_of(variable.get("name"))[:200]
            if "valueFrom" in variable:
                variables.values.pop(name, None)  # the last variable of a name counts
                variables.unknown.add(name)
                kinds = ", ".join(mapping_of(variable["valueFrom"]))[:100]
                instead = f"start the worker with `--secret {name}`, and write `{name}: ${{env:{name}}}` in `env`"
                draft.add("environment-not-supported", f"{path}: the variable {name} comes from {kinds}: {instead}")
            else:
                variables.values[name] = variables.expanded(text_of(variable.get("value", "")))
                variables.unknown.discard(name)
        return variables

    def expanded(self, text: str) -> str:
        """Return a text with the values of the variables that it names, as `$(NAME)`.

        A text that would become too large for a job stays as it is.
        """
        parts, size, end = list[str](), 0, 0
        for reference in _REFERENCE.finditer(text):
            parts += [text[end : reference.start()], self._value(reference)]
            end = reference.end()
            size += len(parts[-1])
            if size > MAX_SPECIFICATION_BYTES:
                self.draft.add("field-not-supported", f"{self.path}: {text[:80]!r} becomes too large for a job")
                return text
        return "".join((*parts, text[end:]))

    def _value(self, reference: re.Match[str]) -> str:
        name = reference["name"]
        if name is None:
            return "$"
        if name in self.unknown:
            said = f"{self.path}: `{reference[0][:200]}` stays as it is: its value is not in the manifest"
            self.draft.add("environment-not-supported", said)
        return self.values.get(name, reference[0])
