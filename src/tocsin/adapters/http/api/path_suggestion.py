"""What was probably meant by a path at which nothing is served."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Final

from starlette.requests import Request

from ....domain.definition import show

_LONGEST: Final = 200
"""Characters of a path up to which it is compared with others."""
_CLOSE: Final = 0.7


def unserved(request: Request) -> str:
    """That nothing is served at the path of a request, and at which path there is what was meant."""
    asked = request.url.path
    known = sorted(_filled(request.app.state.paths, asked)) if len(asked) <= _LONGEST else []
    meant = get_close_matches(asked, known, n=1, cutoff=_CLOSE)
    hint = f"did you mean {meant[0]}?" if meant else f"{request.app.openapi_url} tells all that is"
    return f"nothing is served at {show(asked)}: {hint}"


def _filled(templates: Iterable[str], asked: str) -> Iterator[str]:
    """Paths in which what varies (`{name}`) is as the client wrote it."""
    written = asked.split("/")
    for template in templates:
        parts = template.split("/")
        yield "/".join(
            written[at] if part.startswith("{") and at < len(written) and written[at] else part
            for at, part in enumerate(parts)
        )
