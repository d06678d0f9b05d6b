"""YAML text to documents, by the rules of YAML 1.2: what looks like text is text.

The parser's own rules are those of YAML 1.1, in which `on`, `off`, `yes` and `no` are booleans, `1:30` is ninety, `010` is
eight and `2026-01-01` a date: in a job file each of them is a surprise. Only `true` and `false` are booleans here, numbers
are decimal unless they begin with `0x` or `0o`, and a key that is given twice is an error. Merge keys (`<<`) are kept.
"""

import re
from typing import Any, Final

import yaml
from typing_extensions import override

from ...domain.definition import DefinitionError, DefinitionProblem

_TAG: Final = "tag:yaml.org,2002:"
_JSON_TYPES: Final = frozenset({"null", "bool", "int", "float", "str", "seq", "map"})
_BEGINS: Final = re.compile(
    r"""(?P<before>(?:^|[\s\[{,])[\w.-]+:\s+|^\s*-\s+|[\[,]\s*)(?P<value>[@`*%](?:[^"'\],}#]|(?<!\s)\#)*)"""
)
_REFERENCE: Final = re.compile(r"\$\{[^}]*\}?")


class _Loader(yaml.SafeLoader):
    """The safe loader with the scalars of YAML 1.2's core schema."""

    @override
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Refuse keys given twice, here where merge keys have not yet put inherited ones beside them."""
        node = super().compose_mapping_node(anchor)
        first: dict[tuple[str, str], yaml.Mark] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (earlier := first.setdefault((key.tag, key.value), key.start_mark)) is not key.start_mark:
                problem = f"the key `{key.value}` is given twice, first in line {earlier.line + 1}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
        return node

    def construct_decimal(self, node: yaml.ScalarNode) -> int:
        """An integer, of which a leading zero makes no octal."""
        text = str(self.construct_scalar(node))
        base = {"0o": 8, "0x": 16}.get(text[:2])
        try:
            return int(text[2:], base) if base else int(text)
        except ValueError as error:
            raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from None


# Tables of its own: the inherited ones belong to every user of the parser in this process, and hold what no JSON has (dates,
# sets, binary data).
_Loader.yaml_implicit_resolvers = {}
_Loader.yaml_constructors = {
    tag: construct
    for tag, construct in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.removeprefix(_TAG) in _JSON_TYPES
}
for _name, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("merge", r"<<", "<"),
):
    # The empty scalar is looked up under the empty string, here written as \0.
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"^(?:{_pattern})$"), [c.strip("\0") for c in _first])
_Loader.add_constructor(f"{_TAG}int", _Loader.construct_decimal)


def parse(text: str) -> list[object]:
    """The documents in `text`; an empty one is None, and a text without any holds one empty document.

    Raises:
        DefinitionError: it cannot be parsed; the problem's source is `:line`, and where quotes are missing it says so.
    """
    try:
        return list(yaml.load_all(text, Loader=_Loader)) or [None]
    except yaml.MarkedYAMLError as error:
        if error.context == "while scanning a quoted scalar" and error.context_mark:
            where = error.context_mark
            raise DefinitionError(
                DefinitionProblem(
                    f"the quote in column {where.column + 1} is never closed", source=f":{where.line + 1}"
                )
            ) from None
        mark = error.problem_mark or error.context_mark
        line = mark.line if mark else 0
        reason = error.problem or error.context or "not YAML"
        raise DefinitionError(DefinitionProblem(_hint(text, line) or reason, source=f":{line + 1}")) from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n")
        raise DefinitionError(DefinitionProblem(f"not YAML: {error.reason}", source=f":{line + 1}")) from None
    except RecursionError:
        raise DefinitionError(DefinitionProblem("nested too deep")) from None
    except (ValueError, KeyError) as error:  # an explicit tag on a value that is not of its kind
        raise DefinitionError(DefinitionProblem(f"not YAML: {error}")) from None


def _hint(text: str, number: int) -> str | None:
    """What to write where YAML gives a meaning to the character that a value begins with."""
    lines = text.splitlines()
    line = lines[number] if number < len(lines) else ""
    if found := _BEGINS.search(line):
        value = found["value"].strip()
        example = f'{found["before"].strip(" ,[{-")} "{value}"'.strip()
        return f"YAML reserves `{value[0]}` at the beginning of a value: put it in quotes, {example}"
    if found := _REFERENCE.search(line):
        return f'YAML reserves braces inside a flow mapping: put the reference in quotes, "{found[0]}"'
    if line.count(": ") > 1:
        return "a value that holds `: ` must be in quotes"
    if line[: len(line) - len(line.lstrip())].count("\t"):
        return "YAML indents with spaces, and this line begins with a tab"
    return None
