"""Parse JSON strictly: no repeated keys, no NaN, no infinity."""

import json
from typing import NoReturn

from ...domain.definition import DefinitionError, DefinitionProblem, show


class NotJSON(DefinitionError):
    """The text is not JSON."""

    code = "invalid-json"


def parse(text: str) -> list[object]:
    """Return the document in `text`, as a list of one.

    Raises:
        NotJSON: the text cannot be parsed; the problem's source is `:line`.
        DefinitionError: a key is repeated, or a number is NaN, infinite or too long.
    """
    try:
        return [json.loads(text, object_pairs_hook=_unique, parse_constant=_constant)]
    except json.JSONDecodeError as error:
        raise NotJSON(
            DefinitionProblem(
                f"not JSON: {error.msg}, column {error.colno}", source=f":{error.lineno}", code=NotJSON.code
            )
        ) from None
    except RecursionError:
        raise DefinitionError(DefinitionProblem("nested too deep", code="nested-too-deep")) from None
    except DefinitionError:
        raise
    except ValueError as error:  # an integer of thousands of digits
        raise DefinitionError(DefinitionProblem(str(error), code="invalid-number")) from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in unique if names.count(name) > 1)
        called = f" of {show(unique['name'])}" if twice != "name" and "name" in unique else ""
        reason = f"the key{called} is given twice"
        raise DefinitionError(DefinitionProblem(reason, field=twice, code="duplicate-key"))
    return unique


def _constant(name: str) -> NoReturn:
    raise DefinitionError(DefinitionProblem("JSON has no such number", field=name, code="invalid-number"))
