"""The version comes from one place, and a release refuses what does not agree with it."""

import importlib.util
import re
import shutil
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest
import yaml

import tocsin

ROOT: Final = Path(__file__).parents[1]
DIGEST: Final = f"sha256:{'0' * 64}"
OTHER: Final = f"sha256:{'1' * 64}"


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "compose" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release = loaded()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for path in ("src/tocsin/__init__.py", "compose/helm/tocsin/Chart.yaml"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    (tmp_path / "CHANGELOG.md").write_text(
        f"# Changelog\n\n## [{tocsin.__version__}]: 2027-03-01\n\n- New.\n\n## [0.0.1]: 2026-01-01\n\n- Old.\n"
    )
    return tmp_path


def test_version_has_one_source() -> None:
    assert release.version() == version("tocsin") == tocsin.__version__
    assert not re.search(r"^version =", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)


def test_chart_and_changelog_have_the_version() -> None:
    chart = yaml.safe_load((ROOT / "compose" / "helm" / "tocsin" / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (tocsin.__version__, tocsin.__version__)
    assert f"## [{tocsin.__version__}]: " in (ROOT / "CHANGELOG.md").read_text()


def test_release_of_this_version_is_accepted(repository: Path) -> None:
    release.check(repository, f"v{tocsin.__version__}")
    assert release.notes(repository, tocsin.__version__) == "- New.\n"


def test_wrong_tag_chart_or_changelog_is_refused(repository: Path) -> None:
    with pytest.raises(SystemExit, match=r"the tag is 9\.9\.9"):
        release.check(repository, "v9.9.9")
    changelog = repository / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("2027-03-01", "unreleased"))
    with pytest.raises(SystemExit, match="'unreleased' in place of its date"):
        release.check(repository, f"v{tocsin.__version__}")
    with pytest.raises(SystemExit, match="no section"):
        release.notes(repository, "7.0.0")
    chart = repository / "compose" / "helm" / "tocsin" / "Chart.yaml"
    chart.write_text(re.sub("^appVersion: .*$", "appVersion: 5.5.5", chart.read_text(), flags=re.MULTILINE))
    with pytest.raises(SystemExit, match=r"`appVersion` of Chart\.yaml is 5\.5\.5"):
        release.check(repository, f"v{tocsin.__version__}")


def test_images_get_their_digests(tmp_path: Path) -> None:
    lock, dockerfile = tmp_path / "images.lock", tmp_path / "Dockerfile"
    lock.write_text(f"# The images.\nnats:2.15.1-alpine@{DIGEST}\npython:3.12.11-slim\n")
    dockerfile.write_text(
        "FROM python:3.12.11-slim AS build\nFROM python:3.12.11-slim\nCOPY other/python:3.12.11-slim-x .\n"
    )
    for _ in range(2):  # the second time, all of them are pinned
        release.pin(lock, [dockerfile], lambda _: DIGEST)
        assert lock.read_text().splitlines() == [
            "# The images.",
            f"nats:2.15.1-alpine@{DIGEST}",
            f"python:3.12.11-slim@{DIGEST}",
        ]
        assert dockerfile.read_text().splitlines() == [
            f"FROM python:3.12.11-slim@{DIGEST} AS build",
            f"FROM python:3.12.11-slim@{DIGEST}",
            "COPY other/python:3.12.11-slim-x .",
        ]
    lock.write_text(f"nats@{OTHER}\n")
    release.pin(lock, [], lambda image: image.partition("@")[2])
    assert lock.read_text() == f"nats@{OTHER}\n"
    lock.write_text(f"nats:2.15.1-alpine@{DIGEST}\n")
    with pytest.raises(SystemExit, match="is pinned to"):
        release.pin(lock, [dockerfile], lambda _: OTHER)
    with pytest.raises(SystemExit, match="gives 'no' as the digest"):
        release.pin(lock, [dockerfile], lambda _: "no")


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").iterdir()), ids=lambda path: path.name)
def test_workflow_pins_actions_and_quotes_input(path: Path) -> None:
    text = path.read_text()
    actions = re.findall(r"uses: (.*)", text)
    assert [action for action in actions if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)] == []
    steps = [step for job in yaml.safe_load(text)["jobs"].values() for step in job["steps"]]
    assert [step["run"] for step in steps if "${{" in step.get("run", "")] == []


def test_workflow_runs_commands_that_exist() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert set(workflow["jobs"]) == {"check", "packages", "images", "chart", "release"}
    runs = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    verbs = {verb for run in runs for verb in re.findall(r"compose/release\.py (\w+)", run)}
    assert verbs == {"check", "pin", "notes"}
    for path in {path for run in runs for path in re.findall(r"compose/[\w./-]+", run)}:
        assert (ROOT / path).exists(), path
