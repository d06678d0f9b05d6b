"""A bound on the size of the program that RE2 makes of a regular expression."""

import re
from typing import Final

_PROPERTY: Final = re.compile(r"\\[pP](?:\{\^?\w*\}|.)")
_ESCAPE: Final = re.compile(r"\\(?:x\{[0-9A-Fa-f]*\}|x..|[0-7]{1,3}|.)", re.DOTALL)
_NAMED: Final = re.compile(r"\[:\^?\w*:\]")
_COUNT: Final = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_GROUP: Final = re.compile(r"\(\?(?:P?<\w*>|[a-zA-Z-]*:?)")
_IGNORES_CASE: Final = re.compile(r"\(\?[a-zA-Z]*i")
_CASE: Final = 3.0
"""By how much a search that ignores case may make a program larger."""
_CLASS: Final = 2.0
_WIDE_CLASS: Final = 8.0
"""The size of a class that has most of Unicode."""
_WIDE: Final = "^DWSBC."


class UnknownSize(ValueError):
    """The size of a regular expression is not known."""


def program_size(pattern: str, *, of_property: float) -> float:
    """Return the largest number of instructions that a regular expression may need.

    `of_property`: the number for a class of Unicode, such as that of all letters.

    Raises:
        UnknownSize: it quotes a text, in which parentheses have no meaning.
    """
    if "\\Q" in pattern:
        raise UnknownSize(
            "a regular expression may not quote by `\\Q`: write a backslash before each special character"
        )
    groups: list[list[float]] = [[]]
    place = 0
    while place < len(pattern):
        atoms = groups[-1]
        if found := _COUNT.match(pattern, place):
            times = max(int(number) for number in (found[1], found[2] or "1", "1"))
            atoms[-1:] = [times * atoms[-1] if atoms else 1.0]
        elif (found := _GROUP.match(pattern, place)) or pattern[place] == "(":
            groups.append([])
        elif pattern[place] == ")":
            closed = groups.pop()
            groups = groups or [[]]
            groups[-1].append(sum(closed) + 1)
        elif pattern[place] == "[":
            end = _end_of_class(pattern, place)
            atoms.append(_size_of_class(pattern[place:end], of_property))
            place = end
            continue
        elif found := _PROPERTY.match(pattern, place):
            atoms.append(of_property)
        elif found := _ESCAPE.match(pattern, place):
            atoms.append(_WIDE_CLASS if found[0][1:] in _WIDE else _CLASS)
        else:
            atoms.append(1.0 if pattern[place].isascii() and pattern[place] != "." else 4.0)
        place = found.end() if found else place + 1
    size = sum(map(sum, groups)) + 1
    return size * _CASE if _IGNORES_CASE.search(pattern) else size


def _end_of_class(pattern: str, start: int) -> int:
    place = start + 1
    place += pattern.startswith("^", place)
    place += pattern.startswith("]", place)
    while place < len(pattern) and pattern[place] != "]":
        found = _NAMED.match(pattern, place) or _ESCAPE.match(pattern, place)
        place = found.end() if found else place + 1
    return place + 1


def _size_of_class(text: str, of_property: float) -> float:
    properties = len(_PROPERTY.findall(text))
    is_wide = text.startswith("[^") or not text.isascii() or re.search(r"\\[DWSx]|\[:\^", text) is not None
    own = (_WIDE_CLASS if is_wide else _CLASS) * (1 + len(text) / 10)
    return own + properties * of_property
