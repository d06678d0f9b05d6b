"""The documentation has a picture of each page of the console."""

import re
from typing import Final

from tests.console.screenshots import IMAGES, PAGES, ROOT
from tests.console.vendored import VENDOR

SAME: Final = {"/console/now", "/console/new-job"}
"""Pages that are shown at another address."""


def addresses(constant: str, more: str) -> set[str]:
    """Return the beginnings of the addresses of the pages that the console's router knows."""
    script = (VENDOR.parent / "app.js").read_text()
    table = script.partition(f"const {constant} = {{")[2].partition("};")[0]
    return {f"/console/{name}{more}" for name in re.findall(r"""^ {2}"?([a-z-]+)"?: \[""", table, re.MULTILINE)}


def test_each_page_has_a_picture() -> None:
    shown = {path.partition("?")[0] for path in PAGES.values()}
    lists, details = addresses("PAGES", ""), addresses("DETAILS", "/")
    assert (len(lists), len(details)) > (10, 3)
    assert lists - SAME <= shown
    assert {path for path in details if not any(each.startswith(path) for each in shown)} == set()


def test_each_picture_is_in_the_documentation() -> None:
    text = (ROOT / "docs/how-to/console.md").read_text()
    pictures = set(re.findall(r"images/console/([a-z-]+)\.png", text))
    assert pictures == set(PAGES) == {path.stem for path in IMAGES.glob("*.png")}
