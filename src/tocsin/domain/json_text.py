"""One text for JSON values that are the same."""

import json
from collections.abc import Mapping
from typing import Any


def same_text(value: Any) -> str:  # noqa: ANN401 - JSON
    """Return a text that only equal JSON values share.

    Names have no order, and 1 and 1.0 are one number. For Python, true would be that number too.
    """
    return json.dumps(_comparable(value), sort_keys=True)


def _comparable(value: Any) -> Any:  # noqa: ANN401
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_comparable(item) for item in value]
        case Mapping():
            return {name: _comparable(item) for name, item in value.items()}
        case _:
            return value
