"""JSON that is given on the command line, or in a file that it names."""

import json
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from .failures import Refused


def json_of(option: str, given: str | None, kind: type) -> Any:  # noqa: ANN401 - of the kind that was asked for
    """A JSON object or list, or None where nothing was given.

    Raises:
        Refused: it is not JSON, or not of that kind, or the file cannot be read.
    """
    if given is None:
        return None
    try:
        text = Path(given[1:]).read_text("utf-8") if given.startswith("@") else given
        value: JsonValue = json.loads(text)
    except (OSError, ValueError) as error:
        raise Refused(f"{option}: {error}") from None
    if not isinstance(value, kind):
        raise Refused(f"{option}: a JSON {'object' if kind is dict else 'list'} is needed")
    return value
