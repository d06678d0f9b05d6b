"""Fields of a manifest, and containers of a pod as work of a job."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import JsonValue, TypeAdapter, ValidationError

from ...domain.definition import show
from ...domain.definition.builtin_work import MAX_SPECIFICATION_BYTES
from ...domain.definition.command import LONGEST_GRACE_S
from ...domain.definition.container_work import KubernetesName, Quantity
from ...domain.definition.image import Image, ImageError, read_image
from ...domain.duration import MAX_DURATION_S
from .commands import allowed_variables, argument, worker_note
from .drafts import IN_TEMPLATE, Draft, Names, StepDraft, function_name

MAX_REPORTED: Final = 30
"""Findings about fields of one part of a manifest."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One part of a manifest."""

    draft: Draft
    path: str

    def lose(self, name: str, value: object) -> None:
        """Report a field without an equivalent."""
        self.draft.add("field-not-supported", f"`{self.path}.{name}` is {show(value)}, which has no equivalent")

    def items(self, fields: Mapping[str, Any], name: str) -> list[Any]:
        """Return a list; empty if absent, or of another type, which is a finding."""
        value = fields.get(name)
        if value is not None and not isinstance(value, list):
            self.lose(name, value)
        return list_of(value)

    def mappings(self, fields: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
        """Return the mappings of a list; each other item is a finding."""
        items = self.items(fields, name)
        wrong = [(number, item) for number, item in enumerate(items) if not isinstance(item, Mapping)]
        for number, item in wrong[:MAX_REPORTED]:
            self.lose(f"{name}[{number}]", item)
        if len(wrong) > MAX_REPORTED:
            self.draft.add(
                "field-not-supported",
                f"`{self.path}.{name}` has {len(wrong) - MAX_REPORTED:,} more items that are no mappings",
            )
        return [mapping_of(item) for item in items if isinstance(item, Mapping)]

    def seconds(self, fields: Mapping[str, Any], name: str) -> int | None:
        """Return a number of seconds; None: it is absent, or has no equivalent."""
        value = fields.get(name)
        if value is None:
            return None
        number = whole_number(value)
        if number is None or not 0 <= number <= MAX_DURATION_S:
            self.lose(name, value)
            return None
        return number


def mapping_of(value: object) -> Mapping[str, Any]:
    """Return a mapping with keys that are texts; an empty mapping for any other value."""
    if not isinstance(value, Mapping):
        return {}
    return {key: inner for key, inner in value.items() if isinstance(key, str)}


def list_of(value: object) -> list[Any]:
    """Return a list; an empty list for any other value."""
    return value if isinstance(value, list) else []


def text_of(value: object) -> str:
    """Return the text of a scalar; an empty text for any other value.

    A value with aliases can be small as YAML and huge as text, so only scalars have one.
    """
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float():
            return show(value)
        case _:
            return ""


def whole_number(value: object) -> int | None:
    """Return a whole number that is not negative; None: any other value."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def report_rest(
    draft: Draft, path: str, fields: Mapping[str, Any], known: Collection[str], *, instead: str = "it has no equivalent"
) -> None:
    """Report the fields that nothing reads, and what to do instead."""
    rest = [name for name in fields if name not in known and fields[name] not in (None, {}, [])]
    for name in rest[:MAX_REPORTED]:
        draft.add("field-not-supported", f"`{path}.{name[:100]}` is {show(fields[name])}: {instead}")
    if len(rest) > MAX_REPORTED:
        draft.add("field-not-supported", f"`{path}` has {len(rest) - MAX_REPORTED:,} more fields: {instead}")


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
_REFERENCE: Final = re.compile(r"\$(?:\$|\((?P<name>[^()]*)\))")
_NAME: Final[TypeAdapter[str]] = TypeAdapter(KubernetesName)
_QUANTITY: Final[TypeAdapter[str]] = TypeAdapter(Quantity)
_RESOURCES: Final = frozenset({"cpu", "memory", "ephemeral-storage"})


def set_containers(draft: Draft, pod: Mapping[str, Any], namespace: str) -> None:
    """Set the work of a job from the pod of its template."""
    described = Manifest(draft, "pod")
    first, together = described.mappings(pod, "initContainers"), described.mappings(pod, "containers")
    report_rest(draft, "pod", pod, _POD - _unusual(pod), instead=IN_TEMPLATE)
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
    fields = [each for draft in drafts for each in (draft.fields, *(step.fields for step in draft.steps))]
    works: list[Mapping[str, Any]] = [work for each in fields if isinstance(work := each.get("container"), dict)]
    if not works:
        return None
    namespaces = {work.get("namespace", "default") for work in works}
    images = {image.repository for work in works if (image := _image(work["image"]))}
    accounts = {work["service_account"] for work in works if "service_account" in work}
    return worker_note(
        "container",
        # Jobs without a namespace get the first.
        namespaces=sorted(namespaces, key=lambda name: (name != "default", name)),
        images=sorted(images),
        service_accounts=sorted(accounts),
    )


def _image(text: str) -> Image | None:
    try:
        return read_image(text)
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
    report_rest(draft, path, container, _CONTAINER - _unusual(container), instead=IN_TEMPLATE)
    return {**work, **shared}


def _unusual(fields: Mapping[str, Any]) -> set[str]:
    usual = {**_USUAL, "imagePullPolicy": _usual_policy(text_of(fields.get("image")))}
    return {name for name, value in usual.items() if name in fields and fields[name] != value}


def _usual_policy(image: str) -> str:
    read = _image(image)
    return "Always" if read and read.digest is None and read.tag in {None, "latest"} else "IfNotPresent"


def _resources(described: Manifest, written: Mapping[str, Any]) -> dict[str, JsonValue]:
    resources: dict[str, JsonValue] = {}
    for kind in ("requests", "limits"):
        part = Manifest(described.draft, f"{described.path}.{kind}")
        amounts = mapping_of(written.get(kind))
        known = {name: text_of(amounts[name]) for name in amounts if name in _RESOURCES}
        valid: dict[str, JsonValue] = {name: text for name, text in known.items() if _is_valid(_QUANTITY, text)}
        for name in (name for name in known if name not in valid):
            part.lose(name, amounts[name])
        report_rest(part.draft, part.path, amounts, _RESOURCES, instead=IN_TEMPLATE)
        if valid:
            resources[kind] = valid
    report_rest(described.draft, described.path, written, ("requests", "limits"), instead=IN_TEMPLATE)
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
        """Return the variables; as in Kubernetes, a value may refer to variables before it."""
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
