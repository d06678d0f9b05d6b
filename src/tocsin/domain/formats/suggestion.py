"""What somebody probably meant who wrote a name that does not exist."""

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Final

_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def nearest(written: str, known: Collection[str], synonyms: Mapping[str, str] | None = None) -> str | None:
    """The known name that `written` stands for: by synonym, by another way of joining words, or by a slip of the keyboard."""
    joined = _HUMP.sub("_", written[:64]).casefold().replace("-", "_").replace(" ", "_")
    if joined in known:
        return joined
    if synonyms and synonyms.get(joined) in known:
        return synonyms[joined]
    close = get_close_matches(joined, known, n=1, cutoff=0.6)
    return close[0] if close else None


def listed(names: Collection[str]) -> str:
    """Names in a sentence: `a`, `b` and `c`."""
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"
