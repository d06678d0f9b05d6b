"""Read the manifests in compose/kubernetes."""

import re
import runpy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

import yaml

Object: TypeAlias = dict[str, Any]

COMPOSE: Final = Path(__file__).parents[2] / "compose"
CHART: Final = COMPOSE / "helm" / "tocsin"
RENDERED: Final = ("tocsin.yaml", "stages.yaml")
HELM: Final = SimpleNamespace(**runpy.run_path(str(COMPOSE / "helm" / "render.py")))
"""The script that renders the chart."""
WORKLOADS: Final = ("Deployment", "StatefulSet", "Job")


def objects(name: str) -> list[Object]:
    """Return the objects of a manifest."""
    return list(yaml.safe_load_all((COMPOSE / "kubernetes" / name).read_text("utf-8")))


def of_kind(documents: Sequence[Object], *kinds: str) -> list[Object]:
    """Return the objects of some kinds."""
    return [document for document in documents if document["kind"] in kinds]


def template(workload: Object) -> Object:
    """Return the pods of a Deployment, a StatefulSet or a Job."""
    pod: Object = workload["spec"]["template"]
    return pod


def container(workload: Object) -> Object:
    """Return the container of a workload."""
    [only] = template(workload)["spec"]["containers"]
    found: Object = only
    return found


def component(workload: Object) -> str:
    """Return the part of Tocsin that a workload is."""
    return str(template(workload)["metadata"]["labels"]["app.kubernetes.io/component"])


def secret_keys(documents: Sequence[Object]) -> Iterator[tuple[str, str]]:
    """Yield the name and the key of each Secret that a variable refers to."""
    for workload in of_kind(documents, *WORKLOADS):
        for variable in container(workload).get("env", ()):
            reference: Mapping[str, str] | None = variable.get("valueFrom", {}).get("secretKeyRef")
            if reference is not None:
                yield reference["name"], reference["key"]


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    """Return whether a selector selects a pod with these labels."""
    operators = {"In": lambda value, values: value in values, "NotIn": lambda value, values: value not in values}
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        operators[rule["operator"]](labels.get(rule["key"]), rule["values"])
        for rule in selector.get("matchExpressions", ())
    )


def dockerfile_environment() -> dict[str, str]:
    """Return the variables of Tocsin's image, but for its PATH."""
    text = (COMPOSE / "Dockerfile").read_text("utf-8")
    [line] = [line for line in text.splitlines() if line.startswith("ENV ")]
    return {name: value for name, value in re.findall(r"(\w+)=(\S+)", line) if name != "PATH"}
