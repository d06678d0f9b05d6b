"""The rules of the prose check, each with what to write instead."""

import re
from collections.abc import Iterator
from typing import Final

MAX_SUMMARY_WORDS: Final = 15
MAX_TEST_SUMMARY_WORDS: Final = 22
"""Longer in tests, where one line holds what is given and what follows."""
MAX_SENTENCE_WORDS: Final = 40
MAX_TEST_NAME_WORDS: Final = 8

_WORDING: Final[tuple[tuple[str, str], ...]] = (
    (r"nobody|somebody|anybody|no one|someone else", "name the actor: the ticker, a worker, the caller, the operator"),
    (r"whoever|whomever|whosoever", "name the actor"),
    (r"whatever", "name the thing, or write 'any'"),
    (r"whose stead|in its stead|in his stead", "instead of"),
    (r"anew", "again"),
    (r"heeds?|heeded|behold|thereof|therein|thereby|wherefore|whence|lest|nought|ought to|whereupon", "modern English"),
    (r"needs not|need not be|needs no \w+ing", "does not need to"),
    (r"be it|be that as", "whether"),
    (r"for ever", "forever, or without a time limit"),
    (r"without end", "without a limit"),
    (r"what is so|what is there|what came|what comes|what became of|what becomes of|becomes of", "name the thing"),
    (r"at hand|all the same|and no more\b(?! than)|of its own accord|as it were", "leave it out"),
    (r"no more than help|works? it off|worked off", "say what happens"),
    (r"told|tells", "reports, prints, returns, records"),
    (r"asked|asks", "requests, queries, calls"),
    (r"who asks?|who wants?|who needs?", "the caller"),
    (r"of one's own|one's|ones", "name the thing"),
    (
        r"(?:this|that|the|each|every|another|such|no|which|only|old|older|new|newer|next|last|first|second|right) one",
        "name the thing",
    ),
    (r"so that nobody|nor does|nor is|mere|merely|amid|midst|upon", "modern English"),
    (r"(?:comes|came|come|lies|lie|lay|stands|stood|waits|wait) behind", "follows, is after, waits for"),
    (r"lies? (?:in|at|on|there|outside|beside)", "is in, is at"),
    (r"gives? (?:it )?up for|given up for", "stops, abandons"),
    (r"as (?:it is|they are|things are) now", "current"),
    (r"comes? (?:about|of it|to nothing)", "happens, results"),
    (r"makes? good|put right|puts right|sets? right", "repair, correct"),
    (r"nothing but", "only"),
    (r"long since|since long", "already"),
    (r"is (?-i:none)|is no such", "does not exist"),
    (r"sees to it|see to it", "ensures"),
    (r"has to do with", "concerns"),
)

_PATTERNS: Final = tuple(
    (re.compile(rf"(?<![\w`'-])(?:{words})(?![\w`])", re.IGNORECASE), words, advice) for words, advice in _WORDING
)
_NO_SUMMARY: Final = re.compile(
    r"(What|Who|Whom|Whose|How|That|When|Where|Which|Why|It|Its|They|This|These|Those|And|But|So)\b"
)
_REQUIREMENT: Final = re.compile(r"^(cron_s?\d+|[is]\d+|ojs_retry_\d_\d)_")
"""The number of a requirement or an invariant at the beginning of a test's name."""
_CODE: Final = re.compile(r"``[^`]*``|`[^`]*`")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?:;])\s+|\n\s*\n|\n\s*(?=[-*|#0-9])")
_LINK: Final = re.compile(r"\]\([^)]*\)|https?://\S+")


def wording(text: str) -> Iterator[str]:
    """Yield what is not plain English in a text. Code in backticks does not count."""
    text = _LINK.sub("", _CODE.sub("`x`", text))
    for pattern, _, advice in _PATTERNS:
        for match in pattern.finditer(text):
            yield f"{match.group(0)!r}: {advice}"
    for sentence in _SENTENCE_END.split(text):
        words = [word for word in sentence.split() if any(letter.isalpha() for letter in word)]
        if len(words) > MAX_SENTENCE_WORDS:
            yield f"a sentence of {len(words)} words, {' '.join(words[:6])!r}: at most {MAX_SENTENCE_WORDS}"


def summary(docstring: str, *, most: int = MAX_SUMMARY_WORDS) -> Iterator[str]:
    """Yield what is wrong with the first line of a docstring."""
    line = docstring.strip().split("\n", 1)[0].strip()
    words = [word for word in line.split() if any(letter.isalnum() for letter in word)]
    if len(words) > most:
        yield f"a first line of {len(words)} words: at most {most}"
    if not line.endswith((".", ":", "?")):
        yield "a first line without a period: end the sentence on the first line"
    if match := _NO_SUMMARY.match(line):
        yield f"a first line that begins with {match.group(1)!r}: use an imperative verb or a noun phrase"


def test_name(name: str) -> Iterator[str]:
    """Yield what is wrong with the name of a test."""
    words = _REQUIREMENT.sub("", name.removeprefix("test_")).split("_")
    if len(words) > MAX_TEST_NAME_WORDS:
        yield f"a test name of {len(words)} words: at most {MAX_TEST_NAME_WORDS}"
    yield from wording(" ".join(words))
