"""The public names of `tocsin`, and the modules that they import."""

import subprocess
import sys

import pytest

import tocsin

UNNEEDED = {"croniter", "fastapi", "faststream", "nats", "psycopg", "redis", "sqlalchemy", "typer", "uvicorn"}
"""Packages that a worker's own module must not import."""


def test_public_names_are_those_of_the_sdk() -> None:
    assert dir(tocsin) == [
        "Client",
        "Context",
        "NonRetryableError",
        "Run",
        "SyncClient",
        "Tocsin",
        "Worker",
        "__version__",
    ]
    assert tocsin.Worker.connect_by_default is not None


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'tocsin' has no attribute 'Wroker'"):
        tocsin.Wroker  # noqa: B018


def test_domain_does_not_import_the_sdk() -> None:
    program = (
        f"import sys; sys.path = {sys.path!r}; import tocsin.domain.ids; assert 'tocsin.worker' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", ["Worker", "Tocsin"])
def test_worker_imports_only_what_it_needs(name: str) -> None:
    program = (
        f"import sys; sys.path = {sys.path!r}; import tocsin; tocsin.{name}; "
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    imported = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert not set(imported.split()) & UNNEEDED
