"""Load settings from the command line, the environment, a file and the defaults."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import BaseModel, JsonValue, SecretStr, ValidationError
from pydantic_settings import EnvSettingsSource

from ..domain.definition import DefinitionProblem, show
from ..domain.errors import TocsinError
from ..domain.formats.document import listed, nearest
from ..domain.yaml_fault import fault_of
from .fields import Section
from .root import FieldPath, Settings

DEFAULT: Final = "default"
"""Origin of a field that is not set."""

MASK: Final = "******"

TAG: Final = "type"
"""The field that decides on the other fields of its section."""
_KEY: Final = "[key]"
"""The last part of a place, if a name in a mapping is wrong."""


def is_secret(path: Sequence[str]) -> bool:
    """Return whether a field holds a secret: also a section or a mapping with one."""
    return any(map(_has_secret, _types_at(path)))


def may_be_null(path: Sequence[str]) -> bool:
    return NoneType in _types_at(path)


def resolve(place: Sequence[object]) -> tuple[FieldPath, Mapping[str, Any]]:
    """Return the path of a place that pydantic names, and the fields beside it.

    Where a `type` decides on the fields, pydantic inserts it into the place.
    """
    kinds: tuple[Any, ...] = (Settings,)
    siblings: Mapping[str, Any] = {}
    path = list[str]()
    for part in map(str, place):
        if part == _KEY:
            break
        if tagged := tuple(kind for kind in kinds if part in _tags_of(kind)):
            kinds = tagged
            continue
        siblings = _fields_in(kinds)
        kinds = tuple(_inside(kinds, part))
        path.append(part)
    return tuple(path), siblings


def _types_at(path: Sequence[str]) -> tuple[Any, ...]:
    kinds: tuple[Any, ...] = (Settings,)
    for name in path:
        kinds = tuple(_inside(kinds, name))
    return kinds


def _inside(kinds: Sequence[Any], name: str) -> Iterator[Any]:
    for kind in kinds:
        if get_origin(kind) is dict:
            yield from _alternatives(get_args(kind)[1])
        elif (field := _fields_in((kind,)).get(name)) is not None:
            yield from _alternatives(field.annotation)


def _alternatives(annotation: Any) -> Iterator[Any]:  # noqa: ANN401 - a type
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _alternatives(arguments[0])
    elif origin in {Union, UnionType}:
        for argument in arguments:
            yield from _alternatives(argument)
    else:
        yield annotation


def _fields_in(kinds: Sequence[Any]) -> Mapping[str, Any]:
    sections = (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    return {name: field for section in sections for name, field in section.model_fields.items()}


def _tags_of(kind: Any) -> Sequence[str]:  # noqa: ANN401 - a type
    field = _fields_in((kind,)).get(TAG)
    return () if field is None else get_args(field.annotation)


def _has_secret(kind: Any) -> bool:  # noqa: ANN401 - a type
    if get_origin(kind) is dict:
        return any(map(_has_secret, _alternatives(get_args(kind)[1])))
    fields = _fields_in((kind,)).values()
    return kind is SecretStr or any(_has_secret(inner) for each in fields for inner in _alternatives(each.annotation))


def origins(settings: Settings) -> dict[str, str]:
    """Return the origin of each field: `default`, `command line`, a file or a variable."""
    return {".".join(path): settings._origins.get(path, DEFAULT) for path, _ in _dumped(settings)}  # noqa: SLF001


def shown(settings: Settings) -> dict[str, JsonValue]:
    """Return each field's value for display: readable durations, masked secrets."""
    return {".".join(path): _masked(path, value) for path, value in _dumped(settings)}


def described(settings: Settings) -> dict[str, dict[str, JsonValue]]:
    """Return each field's value for display, and its origin."""
    sources = origins(settings)
    return {name: {"value": value, "origin": sources[name]} for name, value in shown(settings).items()}


def _dumped(settings: Settings) -> Iterator[tuple[FieldPath, JsonValue]]:
    def leaves(values: Mapping[str, JsonValue], path: FieldPath) -> Iterator[tuple[FieldPath, JsonValue]]:
        for name, value in values.items():
            if isinstance(value, dict) and value:
                yield from leaves(value, (*path, name))
            else:
                yield (*path, name), value

    return leaves(settings.model_dump(mode="json"), ())


def _masked(path: FieldPath, value: JsonValue) -> JsonValue:
    if not isinstance(value, str):
        return value
    if is_secret(path):
        return MASK
    return ",".join(without_password(url) for url in value.split(",")) if path[-1].endswith("url") else value


def without_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.password is None and not (parts.username and parts.scheme in {"nats", "tls", "ws", "wss"}):
        return url
    # In a URL of NATS, a user without a password is a token.
    hidden = f"{parts.username}:{MASK}" if parts.password is not None else MASK
    return url.replace(parts.netloc, f"{hidden}@{parts.netloc.rpartition('@')[2]}", 1)


CONFIG_VARIABLE: Final = "TOCSIN_CONFIG"
CONFIG_FILE: Final = Path("tocsin.yaml")
_NAMES_AS_WRITTEN: Final = {("triggers", "streams"), ("triggers", "kv"), ("triggers", "webhooks")}
"""Mappings whose keys keep the case of their variables: streams, buckets and secrets are named by others."""
_SHORT_VARIABLES: Final = {
    "TOCSIN_NATS_URL": ("nats", "url"),
    "TOCSIN_DATABASE_URL": ("database", "url"),
    "NATS_URL": ("nats", "url"),
    "DATABASE_URL": ("database", "url"),
    "TOCSIN_REDIS_URL": ("redis", "url"),
    "REDIS_URL": ("redis", "url"),
}
_NULL: Final = "null"
"""Text of a variable that clears a setting which may be null."""
_REFERENCE: Final = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}")


class SettingsError(TocsinError, ValueError):
    """The settings are invalid. `problems`: each field with its value, its source and the remedy."""

    code = "invalid-settings"

    def __init__(self, *problems: DefinitionProblem) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def load(config: Path | None = None, *, options: Mapping[FieldPath, object] | None = None) -> Settings:
    """Return the settings in force.

    Args:
        config: the configuration file; None: `TOCSIN_CONFIG`, else `./tocsin.yaml` if it exists.
        options: values of the command line by path; None: the option is not set.

    Raises:
        SettingsError: a file cannot be read, a field is unknown, a value is invalid, or a variable is not set.
    """
    given = {path: value for path, value in (options or {}).items() if value is not None}
    layers = (_Layer(_nested(given), "command line"), _variables(), _short_variables(), _file(config))
    values: dict[FieldPath, object] = {}
    origins: dict[FieldPath, str] = {}
    problems: list[DefinitionProblem] = []
    for layer in layers:
        for path, value in _leaves(layer.values):
            if any(path[: len(known)] == known or known[: len(path)] == path for known in values):
                continue
            origins[path] = layer.origin(path)
            try:
                resolved = _resolved(path, value, layer.source) if layer.source else value
            except SettingsError as error:
                problems += error.problems
            else:
                values[path] = None if resolved == _NULL and may_be_null(path) else resolved
    if problems:
        raise SettingsError(*problems)
    return _validated(_nested(values), origins)


def with_options(settings: Settings, options: Mapping[FieldPath, object]) -> Settings:
    """Return the settings of a program with values of the command line by path."""
    given = {path: value for path, value in options.items() if value is not None}
    values = _set_fields(settings)
    for path, value in given.items():
        level: dict[str, Any] = values
        section: BaseModel = settings
        for name in path[:-1]:
            section = getattr(section, name)
            if not isinstance(level.get(name), dict):
                level[name] = _set_fields(section)
            level = level[name]
        level[path[-1]] = value
    return _validated(values, {**settings._origins, **dict.fromkeys(given, "command line")})  # noqa: SLF001


def _validated(values: Mapping[str, Any], origins: Mapping[FieldPath, str]) -> Settings:
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise SettingsError(*_problems(error, origins)) from None
    settings._origins.update(origins)  # noqa: SLF001 - part of this package
    return settings


def _set_fields(section: BaseModel) -> dict[str, Any]:
    return {name: getattr(section, name) for name in section.model_fields_set}


@dataclass(frozen=True, slots=True)
class _Layer:
    """The values of one source. `source`: the path, if it is a file."""

    values: Mapping[str, Any]
    named: Mapping[FieldPath, str] | str
    """Origin of each path, or of all."""
    source: str | None = None

    def origin(self, path: FieldPath) -> str:
        if isinstance(self.named, str):
            return self.named
        return next(self.named[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.named)


def _variables() -> _Layer:
    """Read `TOCSIN_…` variables: of a field, or of a section as JSON."""
    try:
        values = EnvSettingsSource(Settings)()
    except ValueError as error:
        raise SettingsError(DefinitionProblem(f"{error}: {error.__cause__}")) from None
    variables: dict[FieldPath, str] = {}
    for variable in os.environ:
        if variable.upper().startswith("TOCSIN_"):
            written = variable[len("TOCSIN_") :].split("__")
            path = tuple(part.lower() for part in written)
            if path[:-1] in _NAMES_AS_WRITTEN:
                named = _at(values, path[:-1])
                if path[-1] in named:
                    named[written[-1]] = named.pop(path[-1])
                path = (*path[:-1], written[-1])
            variables[path] = variable
    return _Layer(values, variables)


def _at(values: Mapping[str, Any], path: FieldPath) -> dict[str, Any]:
    """Return the mapping at a path; empty if the path has no mapping."""
    found: Any = values
    for part in path:
        found = found.get(part) if isinstance(found, Mapping) else None
    return found if isinstance(found, dict) else {}


def _short_variables() -> _Layer:
    variables: dict[FieldPath, str] = {}
    for variable, path in _SHORT_VARIABLES.items():
        if os.environ.get(variable):
            variables.setdefault(path, variable)
    return _Layer(_nested({path: os.environ[variable] for path, variable in variables.items()}), variables)


def _file(config: Path | None) -> _Layer:
    file = config or (Path(os.environ[CONFIG_VARIABLE]) if os.environ.get(CONFIG_VARIABLE) else None)
    path = file or CONFIG_FILE
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        if file is None:
            return _Layer({}, "")
        reason = "no such file: create it, or name another with --config or TOCSIN_CONFIG"
        raise SettingsError(DefinitionProblem(reason, source=str(path))) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(DefinitionProblem(str(error), source=str(path))) from None
    import yaml  # noqa: PLC0415 - most commands read no file

    try:
        written = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, KeyError) as error:
        raise SettingsError(DefinitionProblem(f"not YAML: {fault_of(error)}", source=str(path))) from None
    if not isinstance(written, dict | None):
        reason = f"expected a mapping of settings, and this is {show(written)}"
        raise SettingsError(DefinitionProblem(reason, source=str(path)))
    return _Layer({str(name): value for name, value in (written or {}).items()}, str(path), str(path))


def _resolved(path: FieldPath, value: object, source: str) -> object:
    if not isinstance(value, str):
        return value

    def variable(found: re.Match[str]) -> str:
        name = found["name"]
        if name is None:
            return "${"
        if name not in os.environ:
            reason = f"the environment variable `{name}` is not set: set it, or write `$${{` for a literal `${{`"
            raise SettingsError(DefinitionProblem(reason, field=".".join(path), value=show(found[0]), source=source))
        return os.environ[name]

    return _REFERENCE.sub(variable, value)


def _leaves(values: Mapping[str, Any], path: FieldPath = ()) -> Iterator[tuple[FieldPath, object]]:
    for name, value in values.items():
        place = (*path, str(name))
        if isinstance(value, Mapping):
            yield from _leaves(value, place)
        elif value is not None or may_be_null(place):  # an empty section or field sets nothing
            yield place, value


def _nested(values: Mapping[FieldPath, object]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, value in values.items():
        section = nested
        for name in path[:-1]:
            section = section.setdefault(name, {})
        section[path[-1]] = value
    return nested


def _problems(error: ValidationError, origins: Mapping[FieldPath, str]) -> Iterator[DefinitionProblem]:
    for details in error.errors(include_url=False):
        path, siblings = resolve(details["loc"])
        field = ".".join(path)
        source = origins.get(path)
        if details["type"] == "extra_forbidden":
            known = sorted(siblings)
            suggestion = nearest(path[-1], known)
            right = ".".join((*path[:-1], suggestion or ""))
            reason = f", did you mean `{right}`?" if suggestion else f": the settings here are {listed(known)}"
            source = source or next((o for p, o in origins.items() if p[: len(path)] == path), None)
            yield DefinitionProblem(reason, field=field, source=source, unknown=True)
            continue
        context = details.get("ctx", {})
        if details["type"] in {"union_tag_invalid", "union_tag_not_found"}:
            place, tag = (*path, TAG), context.get("tag")
            reason = f"must be one of {listed([known for kind in _types_at(path) for known in _tags_of(kind)])}"
            shown = None if tag is None else show(tag)
            yield DefinitionProblem(reason, field=".".join(place), value=shown, source=origins.get(place))
            continue
        cause = context.get("error")
        reason = str(cause) if cause else details["msg"].removeprefix("Input ").replace("should", "must")
        shown = None if isinstance(details["input"], Mapping | Section) or is_secret(path) else show(details["input"])
        yield DefinitionProblem(reason, field=field, value=shown, source=source)
