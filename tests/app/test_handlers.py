"""Handlers with types: arguments, results, and inputs that do not fit."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel, Field, JsonValue, SecretStr

from tests.worker.given import FUNCTION, Bench
from tocsin import Context
from tocsin.app.declarations import handler_of
from tocsin.app.signature import Signature
from tocsin.domain.events import Report


@dataclass
class Row:
    number: int
    day: date


@dataclass
class Share:
    value: float


class Total(BaseModel):
    total: float
    written_as: str = Field(default="x", alias="writtenAs")


async def report(bench: Bench, function: Callable[..., object], **task: Any) -> Report:  # noqa: ANN401 - as `run`
    bench.handlers.add(FUNCTION, handler_of(function, Signature.of(function)))
    await bench.run(**task)
    return await bench.report()


async def result(bench: Bench, function: Callable[..., object], **task: Any) -> JsonValue:  # noqa: ANN401
    stored = await report(bench, function, **task)
    assert stored.error is None
    return stored.result


async def failure(bench: Bench, function: Callable[..., object], **task: Any) -> tuple[str, str, bool]:  # noqa: ANN401
    error = (await report(bench, function, **task)).error
    assert error is not None
    return error.type, error.message, error.retryable


async def test_input_is_converted_before_the_call(bench: Bench) -> None:
    async def load(context: Context, day: date, rows: list[Row], limit: int = 7) -> list[object]:
        assert day == date(2026, 11, 26)
        assert rows == [Row(1, date(2026, 1, 1))]
        return [context.execution_id != "", limit]

    given = {"day": "2026-11-26", "rows": [{"number": 1, "day": "2026-01-01"}]}
    assert await result(bench, load, input=given) == [True, 7]


async def test_function_needs_no_context(bench: Bench) -> None:
    async def double(number: int) -> int:
        return number * 2

    assert await result(bench, double, input={"number": 21}) == 42


async def test_sync_function_runs_in_a_thread(bench: Bench) -> None:
    def where(context: Context) -> list[str]:
        return [context.step, threading.current_thread().name.rpartition("-")[0]]

    assert await result(bench, where) == ["main", "tocsin-task"]


async def test_positional_arguments_fill_parameters_in_order(bench: Bench) -> None:
    def add(first: int, second: int, *, third: int = 0) -> int:
        return first * 100 + second * 10 + third

    assert await result(bench, add, args=[1, 2], input={"third": 3}) == 123


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (list[Row], [Row(1, date(2026, 1, 1))], [{"number": 1, "day": "2026-01-01"}]),
        (Total, Total(total=1, writtenAs="y"), {"total": 1.0, "writtenAs": "y"}),
        (Any, {"day": date(2026, 1, 1)}, {"day": "2026-01-01"}),
        (tuple[int, str], (1, "a"), [1, "a"]),
        (set[int], {3}, [3]),
        (None, None, None),
    ],
)
async def test_result_is_written_by_its_annotation(
    bench: Bench, annotation: object, value: object, expected: JsonValue
) -> None:
    async def handler() -> Any:  # noqa: ANN401
        return value

    handler.__annotations__["return"] = annotation
    assert await result(bench, handler) == expected


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "3"),
        (list[int], [1.5]),
        (None, 3),
        (float, float("inf")),
        (Any, object()),
        (Any, {"a": [float("nan")]}),
        (Any, Share(float("nan"))),
    ],
)
async def test_result_of_another_type_is_refused(bench: Bench, annotation: object, value: object) -> None:
    async def handler() -> Any:  # noqa: ANN401
        return value

    handler.__annotations__["return"] = annotation
    kind, _, is_retryable = await failure(bench, handler)
    assert (kind, is_retryable) == ("invalid_result", False)


async def test_large_result_is_refused(bench: Bench) -> None:
    async def handler() -> list[str]:
        return ["x" * 1_000] * 100

    kind, message, _ = await failure(bench, handler)
    assert kind == "invalid_result"
    assert "keep it in a store" in message


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "`day` is missing"),
        ({"day": "2026-11-26", "limit": 3}, "`limit` is unknown"),
        ({"day": "tomorrow"}, "`day`: must be a valid date"),
        ({"day": "2026-11-26", "rows": [{"number": "many", "day": "2026-01-01"}]}, "`rows.0.number`: must be a valid"),
    ],
)
async def test_input_of_another_version_is_retried(bench: Bench, given: dict[str, Any], problem: str) -> None:
    def load(day: date, rows: tuple[Row, ...] = ()) -> None: ...

    kind, message, is_retryable = await failure(bench, load, input=given)
    assert (kind, is_retryable) == ("wrong_input", True)
    assert problem in message
    assert "load(day, rows=…)" in message


async def test_too_many_arguments_are_refused(bench: Bench) -> None:
    def load(day: date) -> None: ...

    kind, message, _ = await failure(bench, load, args=["2026-11-26", 2], input={"day": "2026-11-27"})
    assert kind == "wrong_input"
    assert "2 positional arguments, for 1 parameters" in message
    assert "`day` is passed twice" in message


async def test_problems_of_a_large_input_are_few(bench: Bench) -> None:
    def load(numbers: list[int]) -> None: ...

    _, message, _ = await failure(bench, load, input={"numbers": ["x"] * 5_000})
    assert message.count("must be") == 20


async def test_secret_is_passed_and_does_not_leak(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "hunter2-and-more")

    def load(password: SecretStr) -> int:
        return len(password.get_secret_value())

    assert await result(bench, load, input={"password": "${env:DB_PASSWORD}"}) == 16


class Word(BaseModel):
    text: str

    def __init__(self, **data: Any) -> None:  # noqa: ANN401 - any input
        super().__init__(**data)
        raise ValueError(f"bad word {self.text}")


async def test_secret_in_a_problem_is_replaced(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "hunter2-and-more")

    def load(word: Word) -> None: ...

    _, message, _ = await failure(bench, load, input={"word": {"text": "${env:DB_PASSWORD}"}})
    assert "bad word ${env:DB_PASSWORD}" in message


async def test_traceback_begins_in_the_function(bench: Bench) -> None:
    def broken() -> None:
        raise RuntimeError("no rows")

    error = (await report(bench, broken)).error
    assert error is not None
    assert error.type == "RuntimeError"
    assert error.traceback is not None
    assert "tocsin/app" not in error.traceback
