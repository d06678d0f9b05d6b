"""From a text to statements."""

import json
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final, TypeAlias, cast

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput, UnexpectedToken

from ..formats.scratchbird import EXTENSIONS
from ..statement_error import Place, StatementError
from .model import (
    AlterJob,
    CancelRun,
    CreateJob,
    DropJob,
    ExecuteJob,
    Select,
    ShowCreateJob,
    ShowJobs,
    Statement,
)

MAX_STATEMENTS: Final = 1_000
"""The number of statements of a text."""
OPTIONS: Final = EXTENSIONS | {"depends_on"}
"""The fields that `WITH` may have."""

_Node: TypeAlias = Tree[Token]
_Fields: TypeAlias = dict[str, object]


MAX_CHARACTERS: Final = 1_048_576
"""The limit of a text of statements; a statement of a request over HTTP has a smaller limit."""
_NAMES: Final = {
    "COMMA": ",",
    "EQUAL": "=",
    "LPAR": "(",
    "RPAR": ")",
    "DOT": ".",
    "SEMICOLON": ";",
    "$END": "the end",
    "STRING": "a text in single quotes",
    "QUOTED": "a name in double quotes",
    "NAME": "a name",
    "WORD": "a word",
    "NUMBER": "a number",
    "AMOUNT": "a duration such as 90s",
    "UNIT": "a unit such as MINUTES",
    "PARAMETER": "a parameter such as :day",
    "RUN_ID": "the id of a run",
    "SELECT_TEXT": "SELECT",
}


IsSpent: TypeAlias = Callable[[], bool]
"""Returns whether the work on a text must end. It may raise an error of its own."""


def never_spent() -> bool:
    """Let the work on a text take as long as it needs."""
    return False


def parse_tree(text: str, is_spent: IsSpent = never_spent) -> Tree[Token]:
    """Parse a text by the grammar; call `is_spent` before each word.

    Raises:
        StatementError: placed at the first unexpected word, or at the word where the work ended.
    """
    if len(text) > MAX_CHARACTERS:
        reason = f"the text has {len(text):,} characters, more than {MAX_CHARACTERS:,}: divide it"
        raise StatementError(reason, Place(1, 1))
    parser = _grammar().parse_interactive(text)
    last: Token | None = None
    try:
        for token in parser.iter_parse():
            last = token
            if is_spent():
                raise StatementError("the text needs too much work up to here: divide it", _token_place(token))
        return cast("Tree[Token]", parser.feed_eof(last))  # type: ignore[no-untyped-call]  # lark annotates a part
    except UnexpectedInput as error:
        error.interactive_parser = parser  # knows which words are allowed
        raise _unreadable(text, error) from None


@lru_cache(maxsize=1)
def _grammar() -> Lark:
    source = files(__package__).joinpath("statements.lark").read_text(encoding="utf-8")
    return Lark(source, parser="lalr", lexer="contextual", propagate_positions=True)


def _unreadable(text: str, error: UnexpectedInput) -> StatementError:
    given = error.accepts if isinstance(error, UnexpectedToken) else None
    expected = given or getattr(error, "allowed", None) or getattr(error, "expected", None) or ()
    allowed = tuple(sorted({_NAMES.get(name, name) for name in expected if not name.startswith("__")}))
    at_end = isinstance(error, UnexpectedToken) and error.token.type == "$END"
    start = len(text.rstrip()) if at_end else cast("int | None", error.pos_in_stream) or 0
    place = _place_at(text, start)
    if at_end:
        return StatementError("the statement ends too early", place, text=text, allowed=allowed)
    if text[start] in "'\"":
        if text[start + 1 :].count(text[start]) % 2 == 0:
            return StatementError("a quotation mark is never closed", place, text=text)
        kind = "texts are in single quotes, and names in double quotes or none"
        return StatementError(f"{text[start]} is not expected here: {kind}", place, text=text, allowed=allowed)
    word = text[start:].split(maxsplit=1)[0].strip(",;()=")[:40] or text[start]
    close = get_close_matches(word.upper(), [name for name in allowed if name.isupper()], n=1)
    suggestion = close[0] if close and close[0] != word.upper() else ""
    return StatementError(f"{word!r} is not expected here", place, text=text, allowed=allowed, suggestion=suggestion)


def _place_at(text: str, start: int) -> Place:
    before = text[:start]
    return Place(before.count("\n") + 1, start - (before.rfind("\n") + 1) + 1)


def read_statements(text: str, is_spent: IsSpent = never_spent) -> tuple[Statement, ...]:
    """Return the statements in a text, separated by semicolons; see `parse_tree`.

    Raises:
        StatementError: the text is empty, too long or needs too much work, or a statement cannot be read.
    """
    nodes = [node for node in parse_tree(text, is_spent).children if isinstance(node, Tree)]
    if not nodes:
        raise StatementError("there is no statement", Place(1, 1))
    if len(nodes) > MAX_STATEMENTS:
        reason = f"{len(nodes):,} statements, more than {MAX_STATEMENTS:,}: divide the text"
        raise StatementError(reason, _place(nodes[MAX_STATEMENTS]))
    return tuple(_statement(node, text) for node in nodes)


def folded(word: str) -> str:
    """Return the name of a job that an identifier without quotes stands for."""
    return word.lower().replace("_", "-")


def _statement(node: _Node, text: str) -> Statement:
    common: dict[str, Any] = {"place": _place(node), "text": text[node.meta.start_pos : node.meta.end_pos]}
    if node.data == "cancel":
        return CancelRun(run=_value(_tokens(node)[-1]), **common)
    if node.data in {"create", "alter"}:
        fields, places = _clauses(node)
        common |= {"fields": fields, "places": places}
    if node.data in _OF_A_JOB:
        return _OF_A_JOB[node.data](job=_named(node), **common)
    return ShowJobs(**common) if node.data == "show_jobs" else Select(**common)


_OF_A_JOB: Final[Mapping[str, Callable[..., Statement]]] = {
    "create": CreateJob,
    "alter": AlterJob,
    "drop": DropJob,
    "execute": ExecuteJob,
    "show_create": ShowCreateJob,
}


def _clauses(node: _Node) -> tuple[_Fields, Mapping[str, Place]]:
    fields, places = _Fields(), dict[str, Place]()
    for clause in node.children:
        if not isinstance(clause, Tree) or clause.data == "name":
            continue
        place = _place(clause)
        for field, value in _CLAUSES[clause.data](clause):
            if field in fields:
                raise StatementError(f"a second clause for `{field}`; the first is at {places[field]}", place)
            fields[field], places[field] = value, place
    return fields, places


_Reader: TypeAlias = Callable[[_Node], Iterator[tuple[str, object]]]


def _text_of(field: str) -> _Reader:
    """Return the reader of a clause whose last token is its value."""
    return lambda clause: iter([(field, _value(_tokens(clause)[-1]))])


def _number(clause: _Node) -> Iterator[tuple[str, object]]:
    yield str(clause.data), _number_of(_tokens(clause)[-1])


def _duration(field: str) -> _Reader:
    return lambda clause: iter([(field, _seconds(clause))])


_LONGEST_NUMBER: Final = 24
"""Characters of a number; the shortest text of every float fits."""


def _seconds(clause: _Node) -> object:
    amount = _tokens(next(child for child in clause.children if isinstance(child, Tree)))
    first = amount[0]
    _check_length(first)
    match amount:
        case [Token(type="NUMBER"), unit]:
            return f"{first}{unit[0].lower()}"
        case [Token(type="NUMBER")]:
            return float(first)
        case _:
            return _value(first)


def _check_length(number: Token) -> None:
    if number.type == "NUMBER" and len(number) > _LONGEST_NUMBER:
        raise StatementError(f"the number {number[:_LONGEST_NUMBER]}… is too long", _token_place(number))


def _number_of(token: Token) -> float:
    _check_length(token)
    return int(token) if token.isdecimal() else float(token)


def _schedule(clause: _Node) -> Iterator[tuple[str, object]]:
    rule = next((child for child in clause.children if isinstance(child, Tree)), None)
    if rule is None:
        yield "cron_expression", _value(_tokens(clause)[-1])
    elif rule.data == "every":
        yield "interval_seconds", _seconds(rule)
    else:
        yield ("timestamp" if rule.data == "at" else "cron_expression"), _value(_tokens(rule)[-1])


def _depends(clause: _Node) -> Iterator[tuple[str, object]]:
    yield "depends_on", [_named_by(child) for child in clause.children if isinstance(child, Tree)]


def _partition(clause: _Node) -> Iterator[tuple[str, object]]:
    _, _, strategy, *values = _tokens(clause)
    names = [_value(value) for value in values]
    match strategy.type:
        case "ALL_SHARDS":
            rule: dict[str, object] = {"strategy": "ALL_SHARDS"}
        case "SHARD" | "SINGLE_SHARD":
            rule = {"strategy": "SINGLE_SHARD", "shard": names[0]}
        case "SHARD_SET":
            rule = {"strategy": "SHARD_SET", "shards": names}
        case _:
            rule = {"strategy": "DYNAMIC", "partition_expression": names[0]}
    yield "partition_rule", rule


def _call(clause: _Node) -> Iterator[tuple[str, object]]:
    words = [str(token) for token in clause.children if isinstance(token, Token) and token.type == "WORD"]
    arguments = [_argument(_tokens(child)[0]) for child in clause.children if isinstance(child, Tree)]
    yield "procedure", {"name": ".".join(words), "arguments": arguments}


_CONSTANTS: Final = {"null": None, "true": True, "false": False}


def _argument(token: Token) -> object:
    """Return an argument of a procedure; a parameter is a value of the input."""
    match token.type:
        case "PARAMETER":
            return f"{{{{ input.{token[1:]} }}}}"
        case "NUMBER":
            return _number_of(token)
        case "WORD":
            if token.lower() not in _CONSTANTS:
                reason = f"{token[:40]!r} is not a value: write 'text', a number, :name, NULL, TRUE or FALSE"
                raise StatementError(reason, _token_place(token))
            return _CONSTANTS[token.lower()]
        case _:
            return _value(token)


def _with(clause: _Node) -> Iterator[tuple[str, object]]:
    token = _tokens(clause)[-1]
    try:
        options = json.loads(_value(token), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise StatementError("the text after WITH is not JSON", _token_place(token)) from None
    if not isinstance(options, dict):
        raise StatementError('the text after WITH is a JSON object, such as {"tags": ["billing"]}', _token_place(token))
    for field, value in options.items():
        if field not in OPTIONS:
            reason, allowed = f"WITH has no field {field[:40]!r}", tuple(sorted(OPTIONS))
            raise StatementError(reason, _token_place(token), allowed=allowed)
        yield field, value


def _no_constant(constant: str) -> object:
    raise ValueError(constant)


_CLAUSES: Final[Mapping[str, _Reader]] = {
    "schedule": _schedule,
    "depends": _depends,
    "starts": _text_of("starts_at"),
    "ends": _text_of("ends_at"),
    "timezone": _text_of("schedule_tz"),
    "class": _text_of("job_class"),
    "partition": _partition,
    "max_retries": _number,
    "retry_backoff": _duration("retry_backoff"),
    "timeout": _duration("timeout"),
    "on_completion": _text_of("on_completion"),
    "catch_up": _text_of("catch_up"),
    "run_as": _text_of("run_as"),
    "description": _text_of("description"),
    "state": _text_of("state"),
    "queue": _text_of("queue"),
    "connection": _text_of("connection"),
    "with": _with,
    "sql": _text_of("job_sql"),
    "call": _call,
    "exec": _text_of("external_command"),
    "function": _text_of("function"),
}
"""The fields of each clause, in the names of ScratchBird's document."""


def _tokens(node: _Node) -> list[Token]:
    return [child for child in node.children if isinstance(child, Token)]


def _value(token: Token) -> str:
    match token.type:
        case "STRING":
            return token[1:-1].replace("''", "'")
        case "QUOTED":
            return token[1:-1].replace('""', '"')
        case _:
            return str(token)


def _named(node: _Node) -> str:
    return _named_by(next(child for child in node.children if isinstance(child, Tree) and child.data == "name"))


def _named_by(node: _Node) -> str:
    (token,) = _tokens(node)
    return folded(token) if token.type == "NAME" else _value(token)


def _place(node: _Node) -> Place:
    return Place(node.meta.line, node.meta.column)


def _token_place(token: Token) -> Place:
    return Place(token.line or 1, token.column or 1)
