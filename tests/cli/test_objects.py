"""Modules that commands import: files of packages, and files with special names."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin.cli.input.objects import load_app
from tocsin.cli.runtime.errors import UsageError

APP = "from tocsin import Tocsin\napp = Tocsin('billing', labels={'name': __name__})\n"


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def name_of(target: Path) -> str:
    return load_app(f"{target}:app").worker.options.labels["name"]


def test_file_of_a_package_is_its_module(tmp_path: Path) -> None:
    inner = tmp_path / "objects_outer" / "inner"
    inner.mkdir(parents=True)
    written(inner.parent, __init__="", rates="RATE = 1\n")
    written(inner, __init__="", near="", app=f"import near\nfrom ..rates import RATE\n{APP}")
    assert name_of(inner / "app.py") == "objects_outer.inner.app"


def test_package_itself_may_have_the_application(tmp_path: Path) -> None:
    folder = tmp_path / "objects_package"
    folder.mkdir()
    written(folder, __init__=APP)
    assert name_of(folder / "__init__.py") == "objects_package"


@pytest.mark.parametrize(("file", "name"), [("__main__", "main"), ("my-app", "my-app")])
def test_file_without_a_package_has_its_own_name(file: str, name: str, tmp_path: Path) -> None:
    program = f'{APP}\nif __name__ == "__main__":\n    app.run()\n'
    assert name_of(written(tmp_path, **{file: program}) / f"{file}.py") == name


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"app\.py does not exist"):
        load_app(f"{tmp_path}/app.py:app")
