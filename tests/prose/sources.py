"""Prose in the repository's files: where it is, and what kind it is."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["docstring", "text", "test name"]

_DIRECTIVE: Final = re.compile(r"#\s*(noqa|type:|pragma|fmt:|pylint|!)")
_NOQA_REASON: Final = re.compile(r"#\s*(?:noqa: [A-Z0-9, ]+|type: ignore\[[^]]*\]) - (.*)")
_FENCE: Final = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_HTML_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_FEWEST_WORDS: Final = 3
_SQL: Final = re.compile(r"\s*SELECT\b")


@dataclass(frozen=True, slots=True)
class Passage:
    """Some prose, and the line on which it begins."""

    line: int
    kind: Kind
    text: str


def passages(path: Path) -> Iterator[Passage]:
    """Yield the prose of a Python, Markdown, YAML, TOML, or shell file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from _python(source, is_test="tests" in path.parts)
    elif path.suffix == ".md":
        yield from _markdown(source)
    else:
        yield from _hash_comments(source)


def _python(source: str, *, is_test: bool) -> Iterator[Passage]:
    nodes, docstrings = [*ast.walk(ast.parse(source))], set[int]()
    for node in nodes:
        for constant, kind in _docstrings(node):
            docstrings.add(id(constant))
            yield Passage(constant.lineno, kind, str(constant.value))
    if is_test:
        yield from _test_names(nodes)
    else:
        yield from _messages(nodes, docstrings)
    if "#" in source:
        yield from _python_comments(source)


def _docstrings(node: ast.AST) -> Iterator[tuple[ast.Constant, Kind]]:
    """Yield a node's docstring, and the strings that document the names above them."""
    body = getattr(node, "body", None)
    has_docstring = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    for i, statement in enumerate(body if isinstance(body, list) else []):
        constant = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
            yield constant, "docstring" if has_docstring and i == 0 else "text"


def _test_names(nodes: Iterable[ast.AST]) -> Iterator[Passage]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield Passage(node.lineno, "test name", node.name)


def _messages(nodes: Iterable[ast.AST], docstrings: set[int]) -> Iterator[Passage]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            words = [word for word in node.value.split() if re.fullmatch(r"[A-Za-z',.;:-]+", word)]
            if len(words) >= _FEWEST_WORDS and not _SQL.match(node.value):
                yield Passage(node.lineno, "text", node.value)


def _python_comments(source: str) -> Iterator[Passage]:
    comment, first, last = list[str](), 0, -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, text = token.start[0], token.string
        if _DIRECTIVE.match(text):
            reason = _NOQA_REASON.match(text)
            if reason:
                yield Passage(line, "text", reason.group(1))
            continue
        is_alone = not token.line[: token.start[1]].strip()
        if comment and (line != last + 1 or not is_alone):
            yield Passage(first, "text", " ".join(comment))
            comment = []
        if not comment:
            first = line
        comment.append(text.lstrip("# "))
        last = line if is_alone else -1
    if comment:
        yield Passage(first, "text", " ".join(comment))


def _markdown(source: str) -> Iterator[Passage]:
    def blank(match: re.Match[str]) -> str:
        return "\n" * match.group(0).count("\n")

    source = _HTML_COMMENT.sub(blank, _FENCE.sub(blank, source))
    line = 1
    for block in re.split(r"(\n\s*\n|\n(?=\s*[-*|#] ?))", source):
        if block.strip():
            yield Passage(line + len(block) - len(block.lstrip("\n")), "text", block.replace("|", ". ").strip())
        line += block.count("\n")


def _hash_comments(source: str) -> Iterator[Passage]:
    for number, line in enumerate(source.split("\n"), 1):
        match = re.search(r"(?:^|\s)#\s+(.*)", line)
        if match and not _DIRECTIVE.match(line.strip()):
            yield Passage(number, "text", match.group(1))
