"""The pytest plugin, in a pytest of its own."""

import subprocess
import sys
from pathlib import Path

JOBS = """
from tocsin import Context, Tocsin

app = Tocsin("shop")

@app.job(schedule="@daily")
async def nightly(context: Context) -> int:
    return 1
"""
TEST = """
import asyncio

def test_daily(tocsin_app):
    async def days():
        async with tocsin_app(at="2026-03-08T00:00") as simulation:
            await simulation.advance("2 days")
            return simulation.results("nightly")
    assert asyncio.run(days()) == [1, 1]
"""
UNUSED = """
import sys

def test_nothing_is_loaded():
    loaded = [name for name in sys.modules if name.startswith("tocsin.")]
    assert loaded == ["tocsin.testing", "tocsin.testing.pytest_plugin"]
    assert "pydantic" not in sys.modules
"""


def run(folder: Path, test: str, ini: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text(f"[pytest]\n{ini}\n")
    (folder / "jobs_of_shop.py").write_text(JOBS)
    (folder / "test_it.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", "."]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100)


def test_fixture_simulates_the_named_application(tmp_path: Path) -> None:
    outcome = run(tmp_path, TEST, "tocsin_app = jobs_of_shop:app\npythonpath = .")
    assert outcome.returncode == 0, outcome.stdout


def test_unused_plugin_loads_nothing(tmp_path: Path) -> None:
    outcome = run(tmp_path, UNUSED)
    assert outcome.returncode == 0, outcome.stdout


def test_wrong_name_is_explained(tmp_path: Path) -> None:
    outcome = run(tmp_path, TEST, "tocsin_app = jobs_of_shop.app")
    assert outcome.returncode == 1
    assert "write MODULE:ATTRIBUTE" in outcome.stdout
