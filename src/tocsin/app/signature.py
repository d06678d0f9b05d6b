"""The types of a function's parameters and of its result."""

import inspect
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from types import NoneType
from typing import Annotated, Any, Final, cast, get_args, get_origin, get_type_hints

from pydantic import JsonValue, PydanticUserError, Secret, SecretBytes, SecretStr, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import PydanticSerializationError, from_json, to_json

from ..domain.definition import shorten
from ..domain.definition.fields import json_problem
from ..worker import Context, InvalidResultError
from .errors import ArgumentsError, SignatureError

MAX_LISTED: Final = 20
"""Problems of one input that an error lists."""
_RETURN: Final = "return"
_STARS: Final[Mapping[object, str]] = {
    Parameter.POSITIONAL_ONLY: "",
    Parameter.VAR_POSITIONAL: "*",
    Parameter.VAR_KEYWORD: "**",
}
"""How a parameter is written that cannot be passed by name."""
_BY_NAME: Final = frozenset({Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY})


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


def leaves_of(value: object) -> Iterator[object]:
    """Yield the parts of a value that are no collections."""
    match value:
        case dict():
            for each in value.values():
                yield from leaves_of(each)
        case list() | tuple() | set() | frozenset() | deque():
            for each in value:
                yield from leaves_of(each)
        case _:
            yield value


def require_finite(value: object) -> None:
    """Refuse numbers that pydantic would write as null where no type is given."""
    if any(isinstance(leaf, float) and not math.isfinite(leaf) for leaf in leaves_of(value)):
        raise ValueError("JSON has no infinity and no NaN")


class _InputSchema(GenerateJsonSchema):
    """Leaves out a default that JSON cannot express; the code has it."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012


@dataclass(frozen=True, slots=True)
class TypedParameter:
    """A parameter that the input fills."""

    name: str
    type: TypeAdapter[Any]
    default: object = Parameter.empty
    has_secret: bool = False
    """Whether its schema has a secret, which has no form in JSON; that of `Secret[int]` or `Any` does not show it."""

    @property
    def is_required(self) -> bool:
        """Whether the function has no default for it."""
        return self.default is Parameter.empty

    def written(self, value: object) -> JsonValue:
        """Return a value as JSON that the parameter can be read from.

        Raises:
            ValueError: it is not of the parameter's type, or JSON cannot express it.
        """
        try:
            valid = self.type.validate_python(value)
            plain: JsonValue = from_json(to_json(value)) if json_problem(value) is None else self.dumped(valid)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if reason := json_problem(plain):
            raise ValueError(reason)
        return plain

    def dumped(self, value: object) -> JsonValue:
        """Return a value of the parameter's type as JSON.

        Raises:
            ValueError: JSON cannot express it, or it may contain a secret, which pydantic writes as asterisks.
        """
        written = self.type.dump_python(value, warnings="error")
        require_finite(written)
        if self.has_secret or any(isinstance(leaf, Secret | SecretStr | SecretBytes) for leaf in leaves_of(written)):
            raise ValueError("an input is stored, so a secret cannot be a part of it. Pass JSON with `${env:NAME}`")
        dumped: JsonValue = self.type.dump_python(value, mode="json", by_alias=True, warnings="error")
        return dumped


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters and the result of a function, with their types."""

    function: str
    """The name of the function, for errors."""
    context: str | None
    """The parameter that receives the `Context`; None: the function takes none."""
    parameters: Mapping[str, TypedParameter]
    result: TypeAdapter[Any]
    call: inspect.Signature
    """The parameters as Python binds them, without the context."""

    @classmethod
    def of(cls, function: Callable[..., object]) -> "Signature":
        """Read the signature of a function."""
        name = _checked_name(function)
        types = _types_of(function, name)
        context: str | None = None
        parameters: dict[str, TypedParameter] = {}
        call = inspect.signature(function)
        for parameter in call.parameters.values():
            kind = _annotation_of(parameter, types, name)
            if not _is_context(kind):
                parameters[parameter.name] = _typed(parameter, kind, name)
            elif context is None:
                context = parameter.name
            else:
                reason = f"the context is already passed as `{context}`. Remove one of them."
                raise SignatureError("context-not-alone", name, reason, parameter=parameter.name)
        filled = [parameter for parameter in call.parameters.values() if parameter.name != context]
        result = _adapter(types.get(_RETURN, Any), name, _RETURN)
        return cls(name, context, parameters, result, call.replace(parameters=filled))

    @property
    def shape(self) -> str:
        """The parameters that the input fills, as text: `day, limit=…`."""
        return ", ".join(f"{p.name}" if p.is_required else f"{p.name}=…" for p in self.parameters.values())

    def schema(self) -> dict[str, JsonValue]:
        """Return the JSON Schema of the input."""
        schemas, definitions = TypeAdapter.json_schemas(
            [(p.name, "validation", p.type) for p in self.parameters.values()], schema_generator=_InputSchema
        )
        schema: dict[str, JsonValue] = {
            "type": "object",
            "properties": {p.name: {**schemas[p.name, "validation"], **_default(p)} for p in self.parameters.values()},
            "additionalProperties": False,
        }
        if required := [p.name for p in self.parameters.values() if p.is_required]:
            schema["required"] = cast("list[JsonValue]", required)
        return schema | definitions

    def arguments(
        self, context: Context, args: Sequence[JsonValue], given: Mapping[str, JsonValue]
    ) -> dict[str, object]:
        """Return the arguments of the function by name, converted to their types."""
        problems = list(self._misplaced(args, given))
        arguments: dict[str, object] = {} if self.context is None else {self.context: context}
        for name, value in {**dict(zip(self.parameters, args, strict=False)), **given}.items():
            if name not in self.parameters:
                continue
            try:
                arguments[name] = self.parameters[name].type.validate_json(to_json(value))
            except ValidationError as error:
                problems += value_problems(error, name)
        if problems:
            listed = "; ".join(problems[:MAX_LISTED])
            raise ArgumentsError(
                f"the input does not fit {self.function}({self.shape}): {listed}. If the definition is older or newer than the "
                "code of this worker, apply the definition or deploy the worker."
            )
        return arguments

    def dump(self, result: object) -> JsonValue:
        """Return the result as JSON, by its annotation."""
        try:
            require_finite(self.result.dump_python(result, warnings="error"))
            dumped: JsonValue = self.result.dump_python(result, mode="json", by_alias=True, warnings="error")
        except (PydanticSerializationError, ValueError, RecursionError) as error:
            reason = " ".join(str(error).removeprefix("Pydantic serializer warnings:").split())
            raise InvalidResultError(
                f"the result of {self.function}() does not fit its annotation: {reason}"
            ) from error
        return dumped

    def _misplaced(self, args: Sequence[JsonValue], given: Mapping[str, JsonValue]) -> Iterator[str]:
        """Yield the problems of arguments that no parameter takes, or that a parameter lacks."""
        positional = list(self.parameters)[: len(args)]
        if len(args) > len(self.parameters):
            yield f"{len(args)} positional arguments, for {len(self.parameters)} parameters"
        for name in given:
            if name not in self.parameters:
                yield f"`{shorten(name)}` is unknown"
            elif name in positional:
                yield f"`{name}` is passed twice"
        for parameter in self.parameters.values():
            if parameter.is_required and parameter.name not in given and parameter.name not in positional:
                yield f"`{parameter.name}` is missing"


def value_problems(error: ValidationError, name: str) -> list[str]:
    """Return the problems of one argument, without its value."""
    return [
        f"`{shorten('.'.join(map(str, (name, *details['loc']))))}`: {details['msg'].removeprefix('Input ').replace('should', 'must')}"
        for details in error.errors(include_url=False, include_input=False)[:MAX_LISTED]
    ]


def _checked_name(function: Callable[..., object]) -> str:
    name = getattr(function, "__qualname__", None) or repr(function)
    if not inspect.isfunction(inspect.unwrap(function)) or not callable(function):
        reason = "this is no function. Write the decorator above `def` or `async def`."
        raise SignatureError("not-a-function", name, reason)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        reason = "this is a generator. Return the result instead of yielding it."
        raise SignatureError("not-a-function", name, reason)
    return name.rpartition("<locals>.")[2]


def _types_of(function: Callable[..., object], name: str) -> Mapping[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        unknown = getattr(error, "name", None) or str(error)
        parameter = next((key for key, text in function.__annotations__.items() if unknown in str(text)), None)
        reason = (
            f"the annotation cannot be read when the program runs: {error}. Import its names outside of "
            "`if TYPE_CHECKING:`, and define classes at the level of the module."
        )
        raise SignatureError("unknown-annotation", name, reason, parameter=parameter) from None


def _annotation_of(parameter: Parameter, types: Mapping[str, Any], function: str) -> Any:  # noqa: ANN401 - any type
    if parameter.kind not in _BY_NAME:
        written = _STARS[parameter.kind]
        remedy = "write a parameter for each key, or take one `dict`" if written else "remove the `/` after it"
        reason = f"an input has values by name. For what it contains, {remedy}."
        raise SignatureError("parameter-not-named", function, reason, parameter=f"{written}{parameter.name}")
    if parameter.name not in types and parameter.name in {"self", "cls"}:
        reason = "a worker has no object for a method. Decorate a function of the module, or a static method."
        raise SignatureError("parameter-not-annotated", function, reason, parameter=parameter.name)
    if parameter.name not in types:
        hint = "tocsin.Context" if parameter.name in {"context", "ctx"} else "int"
        reason = f"it has no annotation. Write its type, such as `{parameter.name}: {hint}`."
        raise SignatureError("parameter-not-annotated", function, reason, parameter=parameter.name)
    if isinstance(parameter.default, FieldInfo):
        reason = "its default is a `Field`. Write `Annotated[int, Field(ge=1)] = 5`, so that the default is a value."
        raise SignatureError("unsupported-annotation", function, reason, parameter=parameter.name)
    return types[parameter.name]


def _is_context(kind: object) -> bool:
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return inspect.isclass(bare) and issubclass(bare, Context)


def _typed(parameter: Parameter, kind: Any, function: str) -> TypedParameter:  # noqa: ANN401 - any type
    if any(_is_context(part) for part in _parts(kind)):
        reason = "the context is a part of another type. Write `context: tocsin.Context`; it is always passed."
        raise SignatureError("context-not-alone", function, reason, parameter=parameter.name)
    adapter = _adapter(kind, function, parameter.name)
    try:
        schema = adapter.json_schema(schema_generator=_InputSchema)
    except PydanticUserError as error:
        raise _unsupported(kind, function, parameter.name, error) from None
    return TypedParameter(parameter.name, adapter, parameter.default, has_secret_type(schema))


def _parts(kind: object) -> Iterator[object]:
    for part in get_args(kind):
        yield part
        yield from _parts(part)


def _adapter(kind: Any, function: str, parameter: str) -> TypeAdapter[Any]:  # noqa: ANN401 - any type
    try:
        adapter = TypeAdapter[Any](NoneType if kind is None else kind)
        adapter.rebuild(raise_errors=True)
    except (PydanticUserError, TypeError, NameError) as error:
        raise _unsupported(kind, function, parameter, error) from None
    return adapter


def _unsupported(kind: object, function: str, parameter: str, error: Exception) -> SignatureError:
    written = shorten(getattr(kind, "__qualname__", None) or str(kind))
    remedy = (
        f"{error.message.rstrip('.')}."
        if isinstance(error, PydanticUserError) and error.code == "typed-dict-version"
        else "Use JSON's own types, dates, enumerations, dataclasses or pydantic models; open connections and files "
        "inside the function."
    )
    reason = f"`{written}` has no form in JSON. {remedy}"
    return SignatureError("unsupported-annotation", function, reason, parameter=parameter)


def _default(parameter: TypedParameter) -> dict[str, JsonValue]:
    """Return the default for readers of the schema; nothing, if JSON cannot express it."""
    if parameter.is_required:
        return {}
    try:
        value = parameter.dumped(parameter.default)
    except (PydanticSerializationError, ValueError):
        return {}
    return {} if json_problem(value) else {"default": value}
