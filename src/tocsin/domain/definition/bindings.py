"""Bindings of a step: where the arguments of its handler come from.

    bind: { rows: upstream.extract, parts: [upstream.load-1, upstream.load-2], day: input.day, limit: { value: 5 } }

A binding is a reference to the result of a step or to a key of the job's input, a list of references, or a constant. The
handler gets these arguments and no others. Only constants may refer to secrets: a result that looks like a reference is text.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated, Final, TypeAlias, TypeGuard

from pydantic import BeforeValidator, JsonValue, ValidationInfo, WithJsonSchema

from ..errors import TocsinError
from .errors import show
from .fields import is_stored, json_problem, size_of, text_problem

UPSTREAM: Final = "upstream."
INPUT: Final = "input."
VALUE: Final = "value"
"""The only key of a constant."""
MAX_REPEATED_BYTES: Final = 4_194_304
"""Bytes of JSON of all values that a step's bindings take more than once, with their repetitions."""
_FORMS: Final = "write `upstream.STEP`, `input.KEY`, a list of these, or `{value: …}`"


class BindingError(TocsinError, ValueError):
    """An argument of a step's handler has no value."""

    code = "argument-without-value"


def _checked(value: object, info: ValidationInfo) -> object:
    if is_stored(info) or not isinstance(value, Mapping):
        return value
    for name, binding in value.items():
        if not isinstance(name, str) or text_problem(name):
            raise ValueError(f"the key {show(name)} is no name of a parameter")
        if not _is_binding(binding):
            raise ValueError(f"`{name}` is {show(binding)}: {_FORMS}")
        if isinstance(binding, Mapping) and (reason := json_problem(binding)):
            raise ValueError(f"`{name}`: {reason}")
    return {name: list(binding) if isinstance(binding, tuple) else binding for name, binding in value.items()}


_REFERENCE_SCHEMA: Final[JsonValue] = {"type": "string", "pattern": r"^(upstream|input)\..+"}
Bindings: TypeAlias = Annotated[
    dict[str, JsonValue],
    BeforeValidator(_checked),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {
                "anyOf": [
                    _REFERENCE_SCHEMA,
                    {"type": "array", "items": _REFERENCE_SCHEMA},
                    {"type": "object", "properties": {VALUE: {}}, "required": [VALUE], "additionalProperties": False},
                ]
            },
        }
    ),
]


def references(binding: JsonValue) -> tuple[str, ...]:
    match binding:
        case str():
            return (binding,)
        case list():
            return tuple(reference for reference in binding if isinstance(reference, str))
        case _:
            return ()


def bound_arguments(
    bind: Mapping[str, JsonValue],
    input: Mapping[str, JsonValue],  # noqa: A002 - the name of the field
    upstream: Mapping[str, JsonValue],
    resolve: Callable[[JsonValue], JsonValue],
) -> dict[str, JsonValue]:
    """Return the arguments of a step's handler by name.

    An argument whose key is absent in the input is left out, so that the handler's default applies. The secrets of `input` are resolved;
    `resolve` resolves secrets of a constant. `upstream`: the results of the steps before it.

    Raises:
        BindingError: a result was left out, because all together are too large; a key in a list is absent; values that are taken
            more than once are too large; or a newer version wrote a binding.
    """
    _refuse_repetitions(bind, input, upstream)
    arguments: dict[str, JsonValue] = {}
    for name, binding in bind.items():
        match binding:
            case dict() if binding.keys() == {VALUE}:
                arguments[name] = resolve(binding[VALUE])
            case str() if binding.startswith(INPUT) and binding.removeprefix(INPUT) not in input:
                pass
            case str() if _names_source(binding):
                arguments[name] = _value(name, binding, input, upstream)
            case list() if all(map(_names_source, binding)):
                arguments[name] = [_value(name, reference, input, upstream) for reference in references(binding)]
            case _:
                raise BindingError(f"`{name}` has a binding that this version cannot read: upgrade the worker")
    return arguments


def _refuse_repetitions(
    bind: Mapping[str, JsonValue], input_: Mapping[str, JsonValue], upstream: Mapping[str, JsonValue]
) -> None:
    """Raise BindingError if a small task would make large arguments, because its bindings repeat references."""
    counts = Counter(reference for binding in bind.values() for reference in references(binding))
    size = 0
    for reference, count in counts.items():
        if count > 1:
            source = input_ if reference.startswith(INPUT) else upstream
            size += count * size_of(source.get(reference.partition(".")[2]))
    if size > MAX_REPEATED_BYTES:
        raise BindingError(
            f"values that `bind` takes more than once have {size:,} bytes of JSON with their repetitions, more than "
            f"{MAX_REPEATED_BYTES:,}: pass each once"
        )


def _value(name: str, reference: str, input_: Mapping[str, JsonValue], upstream: Mapping[str, JsonValue]) -> JsonValue:
    source, _, key = reference.partition(".")
    if f"{source}." == INPUT:
        if key not in input_:
            raise BindingError(f"`{name}` takes `{reference}`, which the input lacks: pass it with the trigger")
        return input_[key]
    if key not in upstream:
        raise BindingError(
            f"`{name}` takes `{reference}`, which was left out because the results of all steps before this are too large "
            "together: return less, and refer to a store"
        )
    return upstream[key]


def _is_binding(binding: object) -> bool:
    match binding:
        case str():
            return _is_reference(binding)
        case list() | tuple():
            return all(_is_reference(reference) for reference in binding)
        case Mapping():
            return binding.keys() == {VALUE}
        case _:
            return False


def _names_source(text: object) -> TypeGuard[str]:
    return isinstance(text, str) and text.startswith((UPSTREAM, INPUT))


def _is_reference(text: object) -> bool:
    return _names_source(text) and not text.endswith(".") and not text_problem(text)
