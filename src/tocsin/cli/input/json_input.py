"""JSON that is given on the command line, or in a file that it names."""

import json
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from ...domain.definition import show
from ..runtime.errors import UsageError


def json_of(option: str, given: str | None, kind: type) -> Any:  # noqa: ANN401 - of the kind that was asked for
    """A JSON object or list, or None where nothing was given.

    Raises:
        UsageError: it is not JSON, or not of that kind, or the file cannot be read.
    """
    if given is None:
        return None
    wanted = "an object, as in '{\"key\": 1}'" if kind is dict else "a list, as in '[1, 2]'"
    source, text = (f"{option} {given}", _content(option, given)) if given.startswith("@") else (option, given)
    try:
        value: JsonValue = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise UsageError(f"{source} is {show(text)}: not JSON ({error.msg.lower()}, {place}); write {wanted}") from None
    if not isinstance(value, kind):
        raise UsageError(f"{source} is {show(value)}: write {wanted}")
    return value


def _content(option: str, given: str) -> str:
    file = Path(given[1:])
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"{option} names {file}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{option} names {file}: its text is not UTF-8") from None
