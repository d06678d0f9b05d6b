"""Containers of a pod as the work of a job: a command, or steps."""

import re
from collections.abc import Mapping
from typing import Any, Final

from .commands import program
from .drafts import Draft, Names, StepDraft
from .manifests import list_of, mapping_of, report_rest, text_of

MAX_CONTAINERS: Final = 100
_CONTAINER: Final = frozenset(
    {"name", "image", "command", "args", "env", "imagePullPolicy", "terminationMessagePath", "terminationMessagePolicy"}
)
"""Fields that are read, or that concern only the image and the pod's end."""
_POD: Final = frozenset(
    {
        *("containers", "initContainers", "restartPolicy", "activeDeadlineSeconds", "imagePullSecrets", "dnsPolicy"),
        *("schedulerName", "terminationGracePeriodSeconds"),
    }
)
_VARIABLE: Final = re.compile(r"\$\((\w+)\)")


def set_containers(draft: Draft, pod: Mapping[str, Any]) -> None:
    """Set the work of a job from the pod of its template."""
    first = [mapping_of(each) for each in list_of(pod.get("initContainers"))]
    together = [mapping_of(each) for each in list_of(pod.get("containers"))]
    report_rest(draft, "pod", pod, _POD)
    if len(first) + len(together) > MAX_CONTAINERS:
        draft.add("field-not-supported", f"the pod has more than {MAX_CONTAINERS} containers: the others are not read")
        first, together = first[:MAX_CONTAINERS], together[: max(0, MAX_CONTAINERS - len(first))]
    if not together:
        draft.add("entry-not-readable", "the pod has no containers")
        draft.command = program(draft, [])
        return
    if len(together) == 1 and not first:
        draft.command = _command(draft, together[0])
        return
    draft.add("containers-as-steps", "steps share no volume and no network: hand data over by results or a store")
    names = Names(of_steps=True)
    before: list[str] = []
    for container in first:
        before = [_add_step(draft, container, names, before)]
    for container in together:
        _add_step(draft, container, names, before)


def _add_step(draft: Draft, container: Mapping[str, Any], names: Names, after: list[str]) -> str:
    name = names.free(text_of(container.get("name")) or "container")
    names.take(name)
    draft.steps.append(StepDraft(name, list(after), _command(draft, container)))
    return name


def _command(draft: Draft, container: Mapping[str, Any]) -> dict[str, Any]:
    path = f"container {text_of(container.get('name')) or '?'}"[:80]
    words = [*list_of(container.get("command")), *list_of(container.get("args"))]
    argv = [text_of(word) for word in words]
    image = text_of(container.get("image")) or "that it does not name"
    draft.add("container-image", f"{path}: the worker must have the programs of the image {image[:200]}")
    if not container.get("command"):
        draft.add("container-image", f"{path}: the command is the image's entrypoint: write it before the arguments")
    environment = _environment(draft, path, container)
    argv = [_VARIABLE.sub(lambda found: environment.get(found[1], found[0]), word) for word in argv]
    report_rest(draft, path, container, _CONTAINER)
    return program(draft, argv, environment=environment)


def _environment(draft: Draft, path: str, container: Mapping[str, Any]) -> dict[str, str]:
    environment = {}
    for variable in (mapping_of(each) for each in list_of(container.get("env"))):
        name = text_of(variable.get("name"))[:200]
        if "valueFrom" in variable:
            kinds = ", ".join(mapping_of(variable["valueFrom"]))[:100]
            said = f"{path}: the variable {name} comes from {kinds}: set it on the worker, and write `{name}: ${{env:{name}}}` in `env`"
            draft.add("environment-not-supported", said)
        else:
            environment[name] = text_of(variable.get("value", ""))
    return environment
