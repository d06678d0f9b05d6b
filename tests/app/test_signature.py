"""Signatures of functions: their schema, and the errors of functions that cannot be jobs."""

import enum
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args
from typing import TypedDict as OldTypedDict
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, JsonValue, Secret, SecretStr
from typing_extensions import TypedDict

from tocsin import Context
from tocsin.app import SignatureError
from tocsin.app.errors import SignatureCode
from tocsin.app.signature import Signature

if TYPE_CHECKING:
    from collections.abc import Mapping as OnlyForTypes


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Row:
    number: int
    day: date


class Filter(BaseModel):
    country: str
    rows: list[Row] = []


class Point(NamedTuple):
    x: int
    y: int


class Options(TypedDict):
    depth: int


class Connection: ...


class Account(BaseModel):
    passwords: list[SecretStr]


class Card(BaseModel):
    pin: Secret[int]


class Tree(BaseModel):
    branches: "list[Tree]" = []


NO_ROW: Any = Connection()
PASSWORD = SecretStr("correct horse")


class OldOptions(OldTypedDict):
    depth: int


def properties(function: Callable[..., object]) -> Any:  # noqa: ANN401 - a JSON Schema
    return Signature.of(function).schema()["properties"]


def test_context_is_no_part_of_the_input() -> None:
    def job(day: date, context: Context, *, limit: int = 3) -> None: ...

    signature = Signature.of(job)
    assert signature.context == "context"
    assert list(signature.parameters) == ["day", "limit"]
    assert signature.schema()["required"] == ["day"]
    assert signature.schema()["additionalProperties"] is False


def test_function_without_parameters_takes_no_input() -> None:
    def job() -> None: ...

    assert Signature.of(job).schema() == {"type": "object", "properties": {}, "additionalProperties": False}


def test_annotations_make_the_schema() -> None:
    def job(
        number: int,
        day: date | None = None,
        share: Annotated[float, Field(ge=0, le=1, description="from 0 to 1")] = 0.5,
        colours: tuple[Colour, ...] = (Colour.RED,),
        mode: Literal["fast", "slow"] = "fast",
    ) -> None: ...

    assert properties(job) == {
        "number": {"type": "integer"},
        "day": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}], "default": None},
        "share": {"type": "number", "minimum": 0, "maximum": 1, "description": "from 0 to 1", "default": 0.5},
        "colours": {"type": "array", "items": {"$ref": "#/$defs/Colour"}, "default": ["red"]},
        "mode": {"type": "string", "enum": ["fast", "slow"], "default": "fast"},
    }


@pytest.mark.parametrize(
    "kind",
    [
        *(Row, Filter, Point, Options, Decimal, UUID, timedelta, datetime, bytes),
        *(dict[str, list[Row]], set[int], JsonValue, Any, int | str, Row | None),
    ],
)
def test_type_is_supported(kind: Any) -> None:  # noqa: ANN401 - any type
    def job(value: kind) -> kind: ...

    assert "value" in properties(job)


def test_names_of_models_are_no_trouble() -> None:
    def job(schema: str, copy: int, model_config: str, _hidden: int, self: int) -> None: ...

    assert list(properties(job)) == ["schema", "copy", "model_config", "_hidden", "self"]


def test_default_that_json_lacks_is_left_out() -> None:
    def job(limit: float = float("inf"), row: Row | None = NO_ROW, password: SecretStr = PASSWORD) -> None: ...

    assert "default" not in properties(job)["limit"]
    assert "default" not in properties(job)["row"]
    assert "default" not in properties(job)["password"]


def nested(depth: int) -> Tree:
    tree = Tree()
    for _ in range(depth):
        tree = Tree.model_construct(branches=[tree])
    return tree


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("password", PASSWORD, "a secret cannot be a part of it"),
        ("account", Account(passwords=[PASSWORD]), "a secret cannot be a part of it"),
        ("pin", Secret[int](1234), "a secret cannot be a part of it"),
        ("pins", (Card(pin=Secret[int](1234)),), "a secret cannot be a part of it"),
        ("anything", {"passwords": [PASSWORD]}, "a secret cannot be a part of it"),
        ("tree", nested(3_000), "nested"),
        ("tree", nested(40), "nested"),
    ],
)
def test_value_that_json_cannot_keep_is_refused(name: str, value: object, reason: str) -> None:
    def job(
        password: SecretStr,
        account: Account,
        pin: Secret[int],
        pins: tuple[Card, ...],
        anything: dict[str, object],
        tree: Tree,
    ) -> None: ...

    with pytest.raises(ValueError, match=reason):
        Signature.of(job).parameters[name].written(value)


def test_reference_of_a_secret_is_written() -> None:
    def job(password: SecretStr, account: Account) -> None: ...

    parameters = Signature.of(job).parameters
    assert parameters["password"].written("${env:PASSWORD}") == "${env:PASSWORD}"
    assert parameters["account"].written({"passwords": ["${env:A}"]}) == {"passwords": ["${env:A}"]}


async def asyncgen() -> AsyncIterator[int]:
    yield 1


def generator() -> Iterator[int]:
    yield 1


def args(*numbers: int) -> None: ...


def options(**options: int) -> None: ...


def positional(number: int, /) -> None: ...


def untyped(number) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001 - the mistake


def method(self, number: int) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001 - the mistake


def untyped_context(context) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001 - the mistake


def connected(connection: Connection) -> None: ...


def calling(back: Callable[[int], int]) -> None: ...


def returning() -> Connection: ...  # type: ignore[empty-body]


def old_options(depth: OldOptions) -> None: ...


def only_for_types(value: "OnlyForTypes[str, int]") -> None: ...


def misspelt(value: "Missspelt") -> None: ...  # type: ignore[name-defined]  # noqa: F821 - the mistake


def field(number: int = Field(ge=1)) -> None: ...


def twice(context: Context, other: Context) -> None: ...


def maybe(context: Context | None = None) -> None: ...


class Callee:
    def __call__(self, number: int) -> None: ...


WRONG: list[tuple[Callable[..., object], SignatureCode, str | None, str]] = [
    (asyncgen, "not-a-function", None, "Return the result"),
    (generator, "not-a-function", None, "Return the result"),
    (Callee(), "not-a-function", None, "above `def`"),
    (Row, "not-a-function", None, "above `def`"),
    (args, "parameter-not-named", "*numbers", "take one `dict`"),
    (options, "parameter-not-named", "**options", "take one `dict`"),
    (positional, "parameter-not-named", "number", "remove the `/`"),
    (untyped, "parameter-not-annotated", "number", "`number: int`"),
    (method, "parameter-not-annotated", "self", "a function of the module"),
    (untyped_context, "parameter-not-annotated", "context", "`context: tocsin.Context`"),
    (connected, "unsupported-annotation", "connection", "`Connection` has no form in JSON"),
    (calling, "unsupported-annotation", "back", "dataclasses or pydantic models"),
    (returning, "unsupported-annotation", "return", "`Connection` has no form in JSON"),
    (field, "unsupported-annotation", "number", "Annotated[int, Field(ge=1)] = 5"),
    (only_for_types, "unknown-annotation", "value", "if TYPE_CHECKING:"),
    (misspelt, "unknown-annotation", "value", "Missspelt"),
    (twice, "context-not-alone", "other", "`context`"),
    (maybe, "context-not-alone", "context", "`context: tocsin.Context`"),
]

if sys.version_info < (3, 12):  # pydantic reads only the newer class there
    WRONG += [(old_options, "unsupported-annotation", "depth", "typing_extensions.TypedDict")]


@pytest.mark.parametrize(("function", "code", "parameter", "remedy"), WRONG)
def test_wrong_signature_is_explained(
    function: Callable[..., object], code: str, parameter: str | None, remedy: str
) -> None:
    with pytest.raises(SignatureError) as wrong:
        Signature.of(function)
    assert (wrong.value.code, wrong.value.parameter) == (code, parameter)
    assert remedy in str(wrong.value)
    assert isinstance(wrong.value, TypeError)


def test_each_code_is_documented_and_raised() -> None:
    of_graphs = {"context-in-graph", "default-not-json"}  # see test_graphs.py
    assert SignatureError.codes.keys() == set(get_args(SignatureCode)) == {code for _, code, _, _ in WRONG} | of_graphs
