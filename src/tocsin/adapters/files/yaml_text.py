"""YAML with the types of JSON only, by the core schema of YAML 1.2.

PyYAML follows YAML 1.1: `on`, `off`, `yes` and `no` are booleans, `1:30` is ninety, `010` is eight and `2026-01-01` is a
date. Each of these would be a surprise in a job file. Here only `true` and `false` are booleans, numbers are decimal unless
they begin with `0x` or `0o`, and a repeated key is an error. Merge keys (`<<`) work. What `dump` writes, parsers of both
versions read alike.
"""

import re
from typing import Any, Final

import yaml
from typing_extensions import override

from ...domain.definition import DefinitionError, DefinitionProblem
from ...domain.yaml_fault import problem_of

_TAG: Final = "tag:yaml.org,2002:"
_JSON_TYPES: Final = frozenset({"null", "bool", "int", "float", "str", "seq", "map"})
_BEGINS: Final = re.compile(
    r"""(?P<before>(?:^|[\s\[{,])[\w.-]+:\s+|^\s*-\s+|[\[,]\s*)(?P<value>[@`*%](?:[^"'\],}#]|(?<!\s)\#)*)"""
)
_MERGE: Final = f"{_TAG}merge"
MAX_MERGED: Final = 500_000
"""The largest number of keys that merge keys add in a file. Ten thousand jobs may inherit fifty keys each."""
INVALID: Final = "invalid-yaml"
"""The code of text that is not YAML, for a reason without a code of its own."""
_MISPLACED: Final = (
    "wrong-indentation",
    "the indentation does not match the lines above, or a list item or key is out of place",
)
_WORDS: Final = {
    "mapping values are not allowed": (
        INVALID,
        "a `key: value` cannot begin here: correct the indentation, or put the text in quotes",
    ),
    "could not find expected ':'": (
        INVALID,
        "this line is neither a `key: value` nor the continuation of a text: add the colon",
    ),
    "expected <block end>": _MISPLACED,
    "did not find expected": _MISPLACED,
    "expected ',' or '}'": ("unclosed-bracket", "the mapping that `{` opens is never closed, or lacks a comma"),
    "expected ',' or ']'": ("unclosed-bracket", "the list that `[` opens is never closed, or lacks a comma"),
    "found character": ("unquoted-value", "a value cannot begin with this character: put the value in quotes"),
    "found undefined alias": ("unknown-alias", "this alias (`*name`) has no anchor (`&name`) before it"),
    "could not determine a constructor": ("unsupported-tag", "this tag (`!name`) is not supported: remove it"),
    "sequence entries are not allowed": (INVALID, "a list item cannot begin here: put the list on its own lines"),
    "expected the node content": (INVALID, "a value is missing here"),
    "expected alphabetic or numeric": (INVALID, "a name is missing here, or has a character that is not allowed"),
    "unacceptable": ("invalid-key", "a mapping cannot have this key: use text"),
    "found unhashable key": ("invalid-key", "a mapping or a list cannot be a key: put it in quotes"),
}
"""The code of a problem of PyYAML and plain words for it, by its beginning."""
_REFERENCE: Final = re.compile(r"\$\{(?P<named>\w+:[\w./-]+\})?")
_WIDTH: Final = 120  # characters of a line, where text can be folded


def _name_of(key: yaml.Node) -> tuple[str, object]:
    return key.tag, key.value if isinstance(key, yaml.ScalarNode) else id(key)


class _Loader(yaml.SafeLoader):
    """The safe loader of PyYAML with the scalars of YAML 1.2's core schema."""

    _merged = 0
    """Keys that merge keys have added."""

    @override
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Reject repeated keys before merge keys add inherited keys to the mapping."""
        node = super().compose_mapping_node(anchor)
        first: dict[tuple[str, str], yaml.Mark] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (earlier := first.setdefault((key.tag, key.value), key.start_mark)) is not key.start_mark:
                reason = f"the key is given twice, first in line {earlier.line + 1}"
                raise _located(key, reason, field=key.value, code="duplicate-key")
        return node

    @override
    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Add inherited keys, each once: of several mappings, the first that has a key counts.

        PyYAML 6.0.3 adds a key as often as it is inherited, which doubles with each level. 6.0.4 takes the wrong value of a key of one
        character.
        """
        merged = [value for key, value in node.value if key.tag == _MERGE]
        parts = [
            each for value in merged for each in (value.value if isinstance(value, yaml.SequenceNode) else [value])
        ]
        if parts and all(isinstance(each, yaml.MappingNode) for each in parts):
            inherited: dict[tuple[str, object], tuple[yaml.Node, yaml.Node]] = {}
            for each in parts:
                self.flatten_mapping(each)
                self._merged += len(each.value)
                inherited = {_name_of(key): (key, value) for key, value in each.value} | inherited
            if self._merged > MAX_MERGED:
                reason = (
                    f"merge keys (`<<`) add more than {MAX_MERGED:,} keys to the mappings of the file: write them out"
                )
                raise _located(node, reason, code="too-large")
            node.value = [*inherited.values(), *((key, value) for key, value in node.value if key.tag != _MERGE)]
        super().flatten_mapping(node)

    def construct_decimal(self, node: yaml.ScalarNode) -> int:
        """Return an integer. A leading zero does not make it octal."""
        text = str(self.construct_scalar(node))
        base = {"0o": 8, "0x": 16}.get(text[:2])
        try:
            return int(text[2:], base) if base else int(text)
        except ValueError:
            reason = "not a whole number of at most 4300 digits"
            raise _located(node, reason, code="invalid-number") from None


def _located(node: yaml.Node, reason: str, *, code: str, field: str = "") -> DefinitionError:
    place = f":{node.start_mark.line + 1}:{node.start_mark.column + 1}"
    return DefinitionError(DefinitionProblem(reason, source=place, field=field, code=code))


class _Dumper(yaml.SafeDumper):
    """The safe dumper of PyYAML. Text that YAML 1.2 reads otherwise is quoted."""

    @override
    def ignore_aliases(self, data: object) -> bool:
        """Write a value that occurs twice in full each time."""
        _ = data
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Return the node of a text.

        Characters that do not print are written as escapes: they change a terminal or the order of the text, and a parser folds
        line breaks that only Unicode knows.
        """
        return self.represent_scalar(f"{_TAG}str", text, style=None if _prints(text) else '"')

    @override
    def write_double_quoted(self, text: str, split: bool = True) -> None:
        """Write a text in quotes, in ASCII if it has characters that do not print."""
        usual, self.allow_unicode = self.allow_unicode, self.allow_unicode and _prints(text)
        super().write_double_quoted(text, split)
        self.allow_unicode = usual


def _prints(text: str) -> bool:
    return text.translate({ord("\n"): None, ord("\t"): None}).isprintable()


_Dumper.add_representer(str, _Dumper.represent_text)

# Own tables: the inherited tables are shared by every user of PyYAML in this process, and contain types that JSON lacks
# (dates, sets, binary data).
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
    for _class in (_Loader, _Dumper):
        # PyYAML looks the empty scalar up under the empty string, written \0 in the table.
        _class.add_implicit_resolver(_TAG + _name, re.compile(rf"^(?:{_pattern})$"), [c.strip("\0") for c in _first])
_Loader.add_constructor(f"{_TAG}int", _Loader.construct_decimal)


def parse(text: str) -> list[object]:
    """Return the documents in `text`.

    An empty document is None; an empty text has one empty document.

    Raises:
        DefinitionError: the text cannot be parsed; the problem's source is `:line:column`, and its text says where quotes are
            missing.
    """
    try:
        return list(yaml.load_all(text, Loader=_Loader)) or [None]
    except DefinitionError:
        raise
    except yaml.MarkedYAMLError as error:
        is_unclosed = error.context == "while scanning a quoted scalar" and error.context_mark is not None
        mark = error.context_mark if is_unclosed else error.problem_mark or error.context_mark
        line, column = (mark.line, mark.column) if mark else (0, 0)
        code, reason = _hint(text, line) or _plain(error.problem or error.context or "")
        if is_unclosed:
            code, reason = "unclosed-quote", "the quote that opens here is never closed"
        raise DefinitionError(DefinitionProblem(reason, source=f":{line + 1}:{column + 1}", code=code)) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = f":{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"
        reason = f"YAML does not allow the control character U+{ord(text[error.position]):04X}: remove it"
        raise DefinitionError(DefinitionProblem(reason, source=place, code="control-character")) from None
    except RecursionError:
        raise DefinitionError(DefinitionProblem("nested too deep", code="nested-too-deep")) from None
    except (ValueError, KeyError):  # their texts quote the value, which may be a secret
        reason = "a value does not fit its tag, such as `!!bool`: remove the tag"
        raise DefinitionError(DefinitionProblem(reason, code="invalid-tag-value")) from None


def dump(value: object) -> str:
    """Return plain JSON as YAML that `parse` reads back unchanged. Keys keep their order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)


def _plain(problem: str) -> tuple[str, str]:
    """Return the code of a problem of PyYAML, and plain words if any."""
    known = next((words for begin, words in _WORDS.items() if problem.startswith(begin)), None)
    return known or (INVALID, problem_of(problem) or "not YAML")


def _hint(text: str, number: int) -> tuple[str, str] | None:
    """Return a code and a correction for a value that needs quotes.

    Other values than schedules may be secrets, so only their first character is shown.
    """
    lines = text.splitlines()
    line = lines[number] if number < len(lines) else ""
    if match := _BEGINS.search(line):
        key, value = match["before"].strip(" ,[{-"), match["value"].strip()
        example = f'{key} "{value if key == "schedule:" else f"{value[0]}…"}"'.strip()
        return (
            "unquoted-value",
            f"YAML reserves `{value[0]}` at the beginning of a value: put it in quotes, {example}",
        )
    if match := _REFERENCE.search(line):
        return (
            "unquoted-value",
            f'YAML reserves braces inside a flow mapping: put the reference in quotes, "{match[0] if match["named"] else "${…}"}"',
        )
    if line.count(": ") > 1:
        return "unquoted-value", "a value that contains `: ` must be in quotes"
    if line[: len(line) - len(line.lstrip())].count("\t"):
        return "tab-indentation", "YAML indents with spaces, and this line begins with a tab"
    return None
