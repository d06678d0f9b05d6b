"""The programs of the page "Use Tocsin from Python" run as they are written."""

import re
from pathlib import Path

import pytest

from tests.client.conftest import Site, in_thread
from tocsin.domain.errors import TocsinError
from tocsin.services import operator  # noqa: F401 - its errors are among those of the page

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "python-client.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
URL = "http://127.0.0.1:8062"


async def test_programs_of_the_page_run(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    printed: list[str] = []
    for program in PROGRAMS:
        assert URL in program
        code = compile(program.replace(URL, site.url), "python-client.md", "exec")
        await in_thread(lambda code=code: exec(code, {}))  # type: ignore[misc] # noqa: S102 - our own page
        printed.append(capsys.readouterr().out)
    first, second, third, _, once, last = (
        "".join(line for line in text.splitlines() if "\x1b" not in line) for text in printed
    )
    assert first == "{'rows': 3}"
    assert second.endswith("{'rows': 3}")
    assert third == "{'rows': 3}"
    assert once == "drop"
    assert "completed" in last


def test_codes_of_the_page_are_true() -> None:
    def subclasses(kind: type[TocsinError]) -> set[type[TocsinError]]:
        return {kind}.union(*(subclasses(each) for each in kind.__subclasses__()))

    codes = {error.__name__: error.code for error in subclasses(TocsinError)}
    rows = re.findall(r"^\| (`[^|]*`) \| (`[^|]*`) \|", PAGE, re.MULTILINE)
    for written, classes in rows:
        names = [name.strip("`").rpartition(".")[2] for name in classes.split(", ")]
        assert {codes[name] for name in names if name in codes} <= {code.strip("`") for code in written.split(", ")}
