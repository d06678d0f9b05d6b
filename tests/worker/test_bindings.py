"""Tasks with bindings: the arguments that a handler gets."""

import pytest
from pydantic import JsonValue

from tests.worker.given import Bench
from tocsin import Context


async def test_handler_gets_the_bound_arguments_alone(bench: Bench) -> None:
    def load(context: Context, day: str, limit: int) -> JsonValue:
        return [day, limit, context.input]

    bind: dict[str, JsonValue] = {"day": "input.day", "limit": {"value": 5}}
    await bench.run(load, bind=bind, input={"day": "monday", "limit": 99, "other": 1}, args=["x"])
    assert (await bench.report()).result == ["monday", 5, {"day": "monday", "limit": 99, "other": 1}]


async def test_constant_may_refer_to_a_secret(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "hunter2-and-more")

    def load(_: Context, password: str) -> JsonValue:
        return [len(password), password]

    await bench.run(load, bind={"password": {"value": "${env:DB_PASSWORD}"}})
    assert (await bench.report()).result == [16, "${env:DB_PASSWORD}"]


async def test_secret_of_a_constant_must_be_allowed(bench: Bench) -> None:
    def load(_: Context, password: str) -> None: ...

    await bench.run(load, bind={"password": {"value": "${env:HOME}"}})
    error = (await bench.report()).error
    assert error is not None
    assert error.type == "secret_unresolved"


async def test_binding_of_newer_version_is_wrong_input(bench: Bench) -> None:
    def load(_: Context, rows: list[int]) -> None: ...

    await bench.run(load, bind={"rows": {"newer": 1}})
    error = (await bench.report()).error
    assert error is not None
    assert (error.type, error.retryable) == ("wrong_input", False)


async def test_missing_result_is_a_wrong_input(bench: Bench) -> None:
    def load(_: Context, rows: list[int]) -> None: ...

    await bench.run(load, bind={"rows": "upstream.extract"})
    error = (await bench.report()).error
    assert error is not None
    assert (error.type, error.retryable) == ("wrong_input", False)
    assert "return less, and refer to a store" in error.message
