"""Time-zone data of other releases."""

import shutil
from importlib.resources import files
from pathlib import Path

from tocsin.domain.schedule import TimezoneDatabase


def decreed(folder: Path, **zones: str) -> TimezoneDatabase:
    """A copy of the package in which some zones of Europe have the clocks of another zone: `Berlin="Asia/Tokyo"`."""
    package = Path(str(files("tzdata")))
    shutil.copytree(package, folder, dirs_exist_ok=True)
    for city, like in zones.items():
        shutil.copy(package / "zoneinfo" / like, folder / "zoneinfo" / "Europe" / city)
    (folder / "zoneinfo" / "tzdata.zi").write_text("# version 2042z\n")
    return TimezoneDatabase(folder)
