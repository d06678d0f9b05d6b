"""The table of invariants in the package's docstring names modules of the package."""

import re
from pathlib import Path

from tocsin.services import audit


def test_table_names_modules_that_exist() -> None:
    rows = re.findall(r"^\| I\d.* \| (.*) \|$", audit.__doc__ or "", re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    folder = Path(audit.__file__).parent
    assert len(names) > 4
    assert sorted(name for name in names if not (folder / f"{name}.py").exists()) == []
