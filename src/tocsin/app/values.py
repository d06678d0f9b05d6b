"""Checks of values that are written as JSON: secrets, and numbers that JSON lacks."""

import math
from collections import deque

from pydantic import Secret, SecretBytes, SecretStr


def has_secret_type(schema: object) -> bool:
    """Return whether a schema has a secret of pydantic."""
    match schema:
        case {"writeOnly": True, "format": "password"}:
            return True
        case dict():
            return any(map(has_secret_type, schema.values()))
        case list():
            return any(map(has_secret_type, schema))
        case _:
            return False


def contains_secret(value: object) -> bool:
    """Return whether a value, or a part of it, is a secret of pydantic."""
    match value:
        case Secret() | SecretStr() | SecretBytes():
            return True
        case dict():
            return any(map(contains_secret, value.values()))
        case list() | tuple() | set() | frozenset() | deque():
            return any(map(contains_secret, value))
        case _:
            return False


def require_finite(value: object) -> None:
    """Refuse numbers that pydantic would write as null where no type is given.

    Raises:
        ValueError: a number is infinite or not a number.
    """
    match value:
        case float():
            if not math.isfinite(value):
                raise ValueError("JSON has no infinity and no NaN")
        case dict():
            for each in value.values():
                require_finite(each)
        case list() | tuple() | set() | frozenset() | deque():
            for each in value:
                require_finite(each)
