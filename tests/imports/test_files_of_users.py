"""Imports of a folder of real files, which the repository does not hold."""

import os
from pathlib import Path

import pytest

from tests.imports.given import NOW, registrable
from tocsin.adapters.imports import Kind, import_files
from tocsin.domain.definition import DefinitionError

FOLDER = os.environ.get("TOCSIN_TEST_IMPORT_FILES")
"""A folder with the folders `crontab`, `kubernetes`, `celery` and `airflow`. Their files may belong to others."""


@pytest.mark.skipif(not FOLDER, reason="TOCSIN_TEST_IMPORT_FILES names no folder")
@pytest.mark.parametrize("kind", ["crontab", "kubernetes", "celery", "airflow"])
def test_every_file_is_imported_or_refused(kind: Kind, tmp_path: Path) -> None:
    """Each job can be applied, and a file without jobs has a reason."""
    assert FOLDER
    jobs, refused = 0, list[str]()
    for file in sorted((Path(FOLDER) / kind).iterdir()):
        try:
            written = import_files(kind, [str(file)], now=NOW, timezone="UTC")
        except DefinitionError as error:
            refused.append(f"{file.name}: {error}")
            continue
        assert written.jobs or written.findings, file
        jobs += len(registrable(written, tmp_path)) if written.jobs else 0
    assert jobs
    assert refused == [], "read the reasons: only files of no such format may be refused"
