"""The base install runs workers; other commands name their missing extra."""

import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tocsin.adapters.extras import MODULES, ExtraNotInstalled, HistoryExtraNotInstalled, require_extra
from tocsin.adapters.history import open_history
from tocsin.ports import HistoryUnavailable

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
BLOCK = f"import sys; sys.modules.update(dict.fromkeys({sorted(MODULES)!r}))\n"


def python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run code where no optional module can be imported."""
    return subprocess.run([sys.executable, "-c", BLOCK + code, *args], capture_output=True, text=True, check=False)


def tocsin(*args: str) -> subprocess.CompletedProcess[str]:
    return python("from tocsin.cli import main; main()", *args)


@pytest.mark.parametrize(
    "module",
    ["tocsin.worker", "tocsin.cli.app", "tocsin.bootstrap.workers", "tocsin.adapters.http.client"],
)
def test_base_install_imports_clients_and_workers(module: str) -> None:
    done = python(f"import {module}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "extra"),
    [(["serve"], "server"), (["run", "--all"], "server"), (["dev", "--ephemeral"], "server"), (["top"], "terminal")],
)
def test_command_names_its_missing_extra(command: list[str], extra: str) -> None:
    done = tocsin(*command)
    assert done.returncode == 2
    assert f"tocsin {command[0]} needs" in done.stderr
    for installed in (f"'tocsin[{extra}]'", f"-e '.[{extra}]'"):
        assert f"pip install {installed}" in done.stderr


def test_reload_names_its_missing_extra() -> None:
    block = "import sys; sys.modules['watchfiles'] = None\nfrom tocsin.cli import main; main()"
    command = [sys.executable, "-c", block, "dev", "app.py:app", "--reload", "--ephemeral"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "tocsin dev --reload needs" in done.stderr
    assert "pip install 'tocsin[reload]'" in done.stderr


def test_snapshot_of_top_needs_no_extra() -> None:
    assert "no NATS server answers" in tocsin("top", "--once", "--nats", "nats://127.0.0.1:1").stderr


def test_export_of_traces_names_its_missing_extra() -> None:
    module = "tocsin.adapters.otel.span_exporter"
    block = "import sys; sys.modules['opentelemetry.exporter.otlp.proto.http'] = None\n"
    done = python(f"{block}import {module}")
    assert "tocsin[otel]" in done.stderr
    assert "ExtraNotInstalled: OTEL_EXPORTER_OTLP_ENDPOINT needs the extra" in done.stderr


def test_help_works_without_extras() -> None:
    assert tocsin("serve", "--help").returncode == 0


@pytest.mark.parametrize(
    ("module", "url", "extra"),
    [
        ("sqlalchemy", "sqlite:///x.db", "server"),
        ("psycopg", "postgresql://localhost/x", "postgres"),
        ("redis", "redis://localhost", "redis"),
    ],
)
async def test_history_names_its_missing_extra(
    module: str, url: str, extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith(("tocsin.adapters.sql", "tocsin.adapters.redis"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HistoryExtraNotInstalled) as raised:
        async with open_history(url, installation="i", max_connections=1):
            pass
    assert (raised.value.extra, raised.value.code) == (extra, "extra-not-installed")
    assert isinstance(raised.value, HistoryUnavailable)


def test_missing_module_is_found_without_importing(monkeypatch: pytest.MonkeyPatch) -> None:
    require_extra("tocsin serve", "server")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ExtraNotInstalled) as raised:
        require_extra("tocsin serve", "server")
    assert (raised.value.part, raised.value.extra) == ("tocsin serve", "server")


def distributions_of(module: str) -> set[str]:
    return {canonicalize_name(name) for name in packages_distributions()[module]}


@pytest.mark.full
def test_extras_of_modules_are_those_of_the_package() -> None:
    for module, extra in MODULES.items():
        names = {Requirement(line).name.lower() for line in PROJECT["optional-dependencies"][extra]}
        required = {*names, "starlette"}  # FastAPI's own dependency
        assert required & distributions_of(module), module
    base = {Requirement(line).name.lower() for line in PROJECT["dependencies"]}
    assert not any(base & distributions_of(module) for module in MODULES)
