"""JSON text to a document, without what JSON parsers let pass: a key given twice, NaN, infinity."""

import json
from typing import NoReturn

from ...domain.definition import DefinitionError, DefinitionProblem, show


class NotJSON(DefinitionError):
    """The text is no JSON."""


def parse(text: str) -> list[object]:
    """The one document in `text`.

    Raises:
        NotJSON: it cannot be parsed; the problem's source is `:line`.
        DefinitionError: a key is given twice, or a number is none.
    """
    try:
        return [json.loads(text, object_pairs_hook=_unique, parse_constant=_constant)]
    except json.JSONDecodeError as error:
        raise NotJSON(
            DefinitionProblem(f"not JSON: {error.msg}, column {error.colno}", source=f":{error.lineno}")
        ) from None
    except RecursionError:
        raise DefinitionError(DefinitionProblem("nested too deep")) from None
    except DefinitionError:
        raise
    except ValueError as error:  # an integer of thousands of digits
        raise DefinitionError(DefinitionProblem(str(error))) from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        called = f" of {show(found['name'])}" if twice != "name" and "name" in found else ""
        raise DefinitionError(DefinitionProblem(f"the key `{twice}`{called} is given twice"))
    return found


def _constant(name: str) -> NoReturn:
    raise DefinitionError(DefinitionProblem(f"JSON has no {name}"))
