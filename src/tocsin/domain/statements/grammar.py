"""The grammar, and the errors of texts that do not follow it."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from typing import Final, TypeAlias, cast

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput, UnexpectedToken

from ..statement_error import Place, StatementError

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
    """Parse a text by the grammar.

    `is_spent` is called before each word.

    Raises:
        StatementError: placed at the first unexpected word, or at the word where the work ended.
    """
    if len(text) > MAX_CHARACTERS:
        raise StatementError(
            f"the text has {len(text):,} characters, more than {MAX_CHARACTERS:,}: divide it", Place(1, 1)
        )
    parser = _grammar().parse_interactive(text)
    last: Token | None = None
    try:
        for token in parser.iter_parse():
            last = token
            if is_spent():
                raise StatementError("the text needs too much work up to here: divide it", _place_of(token))
        return cast("Tree[Token]", parser.feed_eof(last))  # type: ignore[no-untyped-call]  # lark annotates a part
    except UnexpectedInput as error:
        error.interactive_parser = parser  # knows which words are allowed
        raise _unreadable(text, error) from None


@lru_cache(maxsize=1)
def _grammar() -> Lark:
    source = files(__package__).joinpath("statements.lark").read_text(encoding="utf-8")
    return Lark(source, parser="lalr", lexer="contextual", propagate_positions=True)


def _unreadable(text: str, error: UnexpectedInput) -> StatementError:
    expected = error.accepts if isinstance(error, UnexpectedToken) and error.accepts else _expected(error)
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


def _expected(error: UnexpectedInput) -> set[str]:
    return set(getattr(error, "allowed", None) or getattr(error, "expected", None) or ())


def _place_of(token: Token) -> Place:
    return Place(token.line or 1, token.column or 1)


def _place_at(text: str, start: int) -> Place:
    before = text[:start]
    return Place(before.count("\n") + 1, start - (before.rfind("\n") + 1) + 1)
