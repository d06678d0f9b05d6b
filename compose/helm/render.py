"""Render the manifests in compose/kubernetes from the chart, or check that they are current.

    python compose/helm/render.py            writes the manifests, and into the chart the NATS accounts of its settings and the example of an executor
    python compose/helm/render.py --check    names the files that differ, and exits 1 if any does

Helm itself renders: the program `helm`, or Helm's library for Python (`pip install helm-python-sdk`). Each file begins with a digest of the
chart and its values. Without Helm, the check compares the digest only: it finds a chart that was changed and not rendered.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from tocsin.adapters.nats.admin.accounts import server_accounts
from tocsin.bootstrap.nats_roles import permissions
from tocsin.settings import load

HERE: Final = Path(__file__).parent
CHART: Final = HERE / "tocsin"
MANIFESTS: Final = HERE.parent / "kubernetes"
RELEASE: Final = "tocsin"
EXECUTOR: Final = HERE.parents[1] / "examples" / "mq_executor.mjs"
"""The executor of hip-62, of which the chart has a copy, because a chart cannot read files outside."""
KINDS: Final = ("NetworkPolicy", "PodDisruptionBudget", "ConfigMap", "Service", "StatefulSet", "Deployment", "Job")
"""The order in which the manifests hold the objects."""
HEADER: Final = """\
# Rendered by compose/helm/render.py from the chart compose/helm/tocsin with compose/helm/values/{name}. Change these, and render again.
# It names no namespace: kubectl apply -n NAMESPACE -f {name}. docs/how-to/kubernetes.md has the Secrets that it needs.
# digest: {digest}
"""


class HelmNotFound(Exception):
    """Neither the program nor the library is installed."""


def main(arguments: list[str]) -> int:
    """Write the manifests, or check them."""
    differing = [path for path in manifests() if not is_current(path)]
    if (CHART / "files" / "accounts.conf").read_text("utf-8") != accounts():
        differing.append(CHART / "files" / "accounts.conf")
    if not copy().exists() or copy().read_text("utf-8") != EXECUTOR.read_text("utf-8"):
        differing.append(copy())
    for path in differing:
        print(path.relative_to(HERE.parent), "differs")
    if "--check" in arguments:
        return 1 if differing else 0
    shutil.copyfile(EXECUTOR, copy())
    for _ in range(2):  # the accounts follow from the settings in a manifest, and a manifest holds the accounts
        for path in manifests():
            path.write_text(rendered(path), "utf-8")
        (CHART / "files" / "accounts.conf").write_text(accounts(), "utf-8")
    return 0


def copy() -> Path:
    """Return the path of the executor in the chart."""
    return CHART / "files" / EXECUTOR.name


def accounts() -> str:
    """Return the NATS accounts for the default settings of the chart."""
    manifest = (MANIFESTS / "tocsin.yaml").read_text("utf-8")
    [settings] = [
        document["data"]["tocsin.yaml"]
        for document in yaml.safe_load_all(manifest)
        if document["kind"] == "ConfigMap" and document["metadata"]["name"] == RELEASE
    ]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tocsin.yaml").write_text(settings, "utf-8")
        return server_accounts(RELEASE.upper(), permissions(load(Path(folder) / "tocsin.yaml")))


def manifests() -> list[Path]:
    """Return the paths of the manifests: each has a file of values with its name."""
    return [MANIFESTS / values.name for values in sorted((HERE / "values").glob("*.yaml"))]


def is_current(path: Path) -> bool:
    """Return whether a manifest is that of the chart."""
    if not path.exists():
        return False
    text = path.read_text("utf-8")
    try:
        return text == rendered(path)
    except HelmNotFound:
        return text.startswith(header(path))


def header(path: Path) -> str:
    """Return the first lines of a manifest."""
    return HEADER.format(name=path.name, digest=digest(path))


def digest(path: Path) -> str:
    """Return the digest of all that a manifest is made from."""
    sources = [HERE / "values" / path.name, *(file for file in sorted(CHART.rglob("*")) if file.is_file())]
    listed = (f"{file.relative_to(HERE)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n" for file in sources)
    return hashlib.sha256("".join(listed).encode()).hexdigest()


def rendered(path: Path) -> str:
    """Return the text of a manifest.

    Raises:
        HelmNotFound: Helm is not installed.
    """
    objects = sorted(render(yaml.safe_load((HERE / "values" / path.name).read_text("utf-8"))), key=_order)
    return header(path) + yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=140, explicit_start=True)


def render(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the objects of the chart with some values.

    Raises:
        HelmNotFound: Helm is not installed.
    """
    for text in _texts(values):
        yield from (document for document in yaml.safe_load_all(text) if document is not None)


def _texts(values: dict[str, Any]) -> list[str]:
    if program := shutil.which("helm"):
        command = [program, "template", RELEASE, str(CHART), "--namespace", RELEASE, "--values", "-"]
        result = subprocess.run(  # noqa: S603 - Helm
            command, input=yaml.safe_dump(values), capture_output=True, text=True, check=True
        )
        return [result.stdout]
    try:
        import helm_python  # noqa: PLC0415 - it may not be installed
    except ImportError:
        raise HelmNotFound("install the program `helm`, or `pip install helm-python-sdk`") from None
    with helm_python.Chart.load(str(CHART)) as chart:
        texts = chart.render(values, name=RELEASE, namespace=RELEASE)
    return [text for file, text in sorted(texts.items()) if file.endswith(".yaml")]


def _order(document: dict[str, Any]) -> tuple[int, str]:
    return KINDS.index(document["kind"]), document["metadata"]["name"]


class _Dumper(yaml.SafeDumper):
    """Writes long texts as they are."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
