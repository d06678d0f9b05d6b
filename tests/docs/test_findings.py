"""The page of symptoms has every finding of `tocsin doctor`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tocsin.ports import UnsupportedLayout
from tocsin.services.health.checks import deadlines, processes

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "symptoms.md").read_text(encoding="utf-8")
MAKERS = {"Finding", "OverdueKind", "bad", "ok", "warn"}
KINDS = (*deadlines.EXECUTIONS, deadlines.OCCURRENCES, deadlines.LOCKS)


def written_codes() -> Iterator[str]:
    """Yield the codes that are written where a finding is made."""
    for path in (ROOT / "src" / "tocsin" / "services" / "health").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = {
            ast.unparse(node.target): node.value for node in tree.body if isinstance(node, ast.AnnAssign) and node.value
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS and node.args:
                code = constants.get(ast.unparse(node.args[0]), node.args[0])
                if isinstance(code, ast.Constant):
                    yield str(code.value)


def test_every_finding_is_on_the_page() -> None:
    codes = {
        UnsupportedLayout.code,
        *written_codes(),
        *(kind.code for kind in KINDS),
        *(code for code, *_ in processes._LEADERS.values()),
    }
    assert len(codes) > 30
    assert codes - set(re.findall(r"`([a-z-]+)`", PAGE)) == set()
