"""Graphs of steps: the plan that a function makes, and what cannot be a part of one."""

import asyncio
from collections.abc import Callable
from datetime import date
from typing import Any

import anyio
import pytest
from pydantic import JsonValue

from tocsin import Context, Tocsin
from tocsin.app import SignatureError, UntraceableError
from tocsin.domain.definition import DefinitionError, JobDefinition

app = Tocsin("billing", queue="money")
other_app = Tocsin("other")


@app.step(timeout="10m", retry={"max_attempts": 5}, queue="heavy")
async def extract(context: Context, country: str, day: date | None = None) -> list[int]:
    return [len(context.step), len(country), 0 if day is None else day.year]


@app.step
def load(rows: list[int], *, limit: int = 3) -> int:
    return sum(rows) + limit


@app.step(name="tell")
def notify(totals: list[int], day: date | None = None) -> None: ...


@app.job
def single() -> None: ...


@other_app.step
def foreign() -> int:
    return 1


def steps(function: Callable[..., object], **fields: Any) -> dict[str, tuple[tuple[str, ...], Any]]:  # noqa: ANN401
    """Return the dependencies and bindings of each step."""
    return {step.name: (step.depends_on, step.bind) for step in definition(function, **fields).dag}


def definition(function: Callable[..., object], **fields: Any) -> JobDefinition:  # noqa: ANN401 - any field
    return Tocsin("billing", queue="money").dag(**fields)(function).definition


def test_calls_become_steps_with_bindings() -> None:
    async def daily(day: date = date(2026, 1, 1)) -> None:
        parts = [await extract(country, day) for country in ("de", "fr")]
        totals = [load(part, limit=5) for part in parts]
        notify(totals, day)

    assert steps(daily) == {
        "extract": ((), {"country": {"value": "de"}, "day": "input.day"}),
        "extract-2": ((), {"country": {"value": "fr"}, "day": "input.day"}),
        "load": (("extract",), {"rows": "upstream.extract", "limit": {"value": 5}}),
        "load-2": (("extract-2",), {"rows": "upstream.extract-2", "limit": {"value": 5}}),
        "tell": (("load", "load-2"), {"totals": ["upstream.load", "upstream.load-2"], "day": "input.day"}),
    }


def test_definition_has_fields_and_defaults() -> None:
    async def daily(country: str, day: date = date(2026, 1, 1)) -> None:
        """Report the day."""
        await extract(country, day)

    made = definition(daily, schedule="@daily", input={"country": "de"}, tags=["x"])
    assert made.input == {"country": "de", "day": "2026-01-01"}
    assert made.description == "Report the day."
    assert made.owner == "app:billing"
    assert made.queue == "money"
    assert made.function is None
    assert (made.dag[0].timeout, made.dag[0].queue, made.dag[0].function) == (600, "heavy", "billing/extract")


def test_names_of_repeated_steps_are_stable() -> None:
    def daily() -> None:
        for _ in range(3):
            load([1])

    assert list(steps(daily)) == list(steps(daily)) == ["load", "load-2", "load-3"]


def test_call_may_have_a_name_and_wait() -> None:
    def daily() -> None:
        first = load([1])
        second = load.named("load-eu")([2])
        notify.after(first, [second])([3])
        load([4])

    assert {name: depends_on for name, (depends_on, _) in steps(daily).items()} == {
        "load": (),
        "load-eu": (),
        "tell": ("load", "load-eu"),
        "load-2": (),
    }


def test_own_name_is_kept() -> None:
    def daily() -> None:
        load.named("load-2")([1])
        load([1])
        load([1])

    assert list(steps(daily)) == ["load-2", "load", "load-3"]


def test_graph_in_a_graph_adds_its_steps() -> None:
    @app.dag(name="inner")
    def inner(rows: list[int]) -> int:
        return load(rows)

    def outer() -> None:
        notify([inner([1]), inner([2])])

    assert list(steps(outer)) == ["load", "load-2", "tell"]


def test_iterator_of_results_is_a_fan_in() -> None:
    def daily() -> None:
        notify(load([number]) for number in range(2))  # type: ignore[arg-type]  # an iterator is no list

    assert steps(daily)["tell"][1] == {"totals": ["upstream.load", "upstream.load-2"]}


def test_largest_graph_is_made() -> None:
    def wide() -> None:
        notify([load([number]) for number in range(999)])

    assert len(definition(wide).dag) == 1_000


async def test_graph_is_a_function_outside_of_a_plan() -> None:
    async def daily() -> None:
        total = load([1, 2], limit=0)
        assert total == 3
        notify([total])

    await Tocsin("billing").dag(daily)()


def test_graph_is_made_at_its_first_use() -> None:
    calls = []

    @Tocsin("billing").dag
    def daily() -> None:
        calls.append(load([1]))

    assert calls == []
    assert daily.definition is daily.definition
    assert len(calls) == 1


def test_worker_has_the_handlers_of_steps() -> None:
    assert {"billing/extract", "billing/load", "billing/tell"} <= set(app.worker.handlers)
    assert {"money", "heavy"} <= set(app.worker.options.queues)


LEAKED: list[Any] = []


def branch() -> None:
    if load([1]):
        load([2])


def compare() -> None:
    if load([1]) == 3:
        load([2])


async def contain() -> None:
    if 3 in await extract("de"):
        load([2])


async def iterate() -> None:
    for number in await extract("de"):
        load([number])


async def attribute() -> None:
    load((await extract("de")).rows)  # type: ignore[attr-defined]


async def element() -> None:
    load((await extract("de"))[0])  # type: ignore[arg-type]


def compute() -> None:
    load([load([1]) + 1])


async def count() -> None:
    load([len(await extract("de"))])


async def gather() -> None:
    await asyncio.gather(extract("de"), extract("fr"))


async def text(day: date) -> None:
    await extract(f"de-{day}")


def called() -> None:
    load([1])()  # type: ignore[operator]


def mixed() -> None:
    notify([load([1]), 5])


def keyed() -> None:
    notify({"a": load([1])})  # type: ignore[arg-type]


def missing() -> None:
    load()  # type: ignore[call-arg]


def unknown() -> None:
    load([1], limits=3)  # type: ignore[call-arg]


def constant() -> None:
    load(["x"])  # type: ignore[list-item]


def endless() -> None:
    while True:
        load([1])


def no_step() -> None: ...


def own_value() -> int:
    load([1])
    return 3


def another_job() -> None:
    single()


def another_app() -> None:
    foreign()


def after_input(day: date) -> None:
    load.after(day)([1])


def same_name() -> None:
    load.named("a")([1])
    load.named("a")([1])


def leaked() -> None:
    LEAKED.append(load([1]))
    load(LEAKED[0])


async def sleep() -> None:
    load([1])
    await asyncio.sleep(1)


async def sleep_in_anyio() -> None:
    await anyio.sleep(1)


async def wait_for_event() -> None:
    await asyncio.Event().wait()


async def without_settings() -> None:
    raise RuntimeError("no folder is set")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (branch, "decides by the result of the step `load`. The plan is the same for every result. Pass it to a step"),
        (compare, "decides by the result"),
        (contain, "decides by the result"),
        (iterate, "iterates over the result of the step `extract`. The number of steps is fixed before."),
        (attribute, "reads `.rows` of the result of the step `extract`. Pass all of it to a step"),
        (element, "reads the element 0 of the result"),
        (compute, "computes with the result"),
        (count, "computes with the result"),
        (gather, "run at the same time, also without `asyncio.gather`"),
        (text, "makes text of the input `day`"),
        (called, "calls the result"),
        (mixed, "`totals` mixes results with other values. Pass one result, or a list"),
        (keyed, "`totals` mixes results with other values"),
        (missing, "missing a required argument: 'rows'. Write the arguments without the context"),
        (unknown, "unexpected keyword argument 'limits'"),
        (constant, "wrong constant: `rows.0`: must be a valid integer"),
        (endless, "more than 1,000 steps"),
        (no_step, "calls no step"),
        (own_value, "returns a value of its own"),
        (another_job, "calls the job `single`"),
        (another_app, "of another application"),
        (after_input, "Pass results of steps"),
        (same_name, "two steps are named `a`"),
        (sleep, "waits for something that is no step"),
        (sleep_in_anyio, "waits for something that is no step"),
        (wait_for_event, "waits for something that is no step"),
    ],
)
def test_what_cannot_be_planned_is_explained(function: Callable[..., object], said: str) -> None:
    with pytest.raises(UntraceableError) as wrong:
        definition(function)
    assert wrong.value.code == "not-traceable"
    assert said in str(wrong.value)
    assert f"in {function.__name__}()" in str(wrong.value)
    assert "test_graphs.py:" in str(wrong.value)


def test_own_error_of_a_graph_is_raised() -> None:
    with pytest.raises(RuntimeError, match=r"^no folder is set$"):
        definition(without_settings)


def test_result_of_another_graph_is_refused() -> None:
    LEAKED.clear()
    definition(leaked)
    with pytest.raises(UntraceableError, match="belongs to another graph"):
        definition(leaked)


def test_error_names_the_line() -> None:
    with pytest.raises(UntraceableError) as wrong:
        definition(branch)
    line = branch.__code__.co_firstlineno + 1
    assert f"test_graphs.py:{line}, in branch()" in str(wrong.value)


def test_code_runs_as_usual_after_a_refused_graph() -> None:
    with pytest.raises(UntraceableError):
        definition(branch)
    assert load([1], limit=1) == 2


async def test_waiting_inside_of_a_loop_is_explained() -> None:
    with pytest.raises(UntraceableError, match="waits for something that is no step"):
        definition(sleep)


def with_context(context: Context) -> None: ...


def with_default(share: float = float("inf")) -> None: ...


@pytest.mark.parametrize(
    ("function", "code", "parameter"),
    [(with_context, "context-in-graph", "context"), (with_default, "default-not-json", "share")],
)
def test_parameters_of_a_graph_are_checked(function: Callable[..., object], code: str, parameter: str) -> None:
    with pytest.raises(SignatureError) as wrong:
        Tocsin("billing").dag(function)
    assert (wrong.value.code, wrong.value.parameter) == (code, parameter)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"schdule": "@daily"}, "unknown-field"),
        ({"schedule": "@daily"}, "required"),
        ({"input": ["text"]}, "wrong-type"),
        ({"input": None}, "wrong-type"),
    ],
)
def test_fields_of_a_graph_are_checked(fields: dict[str, JsonValue], code: str) -> None:
    with pytest.raises(DefinitionError) as wrong:
        Tocsin("billing").dag(**fields)(text)  # type: ignore[call-overload]
    assert wrong.value.problems[0].code == code


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"timeot": "10m"}, "unknown-field"),
        ({"timeout": "soon"}, "invalid-duration"),
        ({"retry": {"attempts": 3}}, "unknown-field"),
        ({"name": "a b"}, "invalid-value"),
    ],
)
def test_fields_of_a_step_are_checked(fields: dict[str, Any], code: str) -> None:
    with pytest.raises(DefinitionError) as wrong:

        @Tocsin("billing").step(**fields)
        def step() -> None: ...

    assert wrong.value.problems[0].code == code


@app.step
def alert(context: Context, day: date) -> None: ...


@app.step
def tidy() -> None: ...


def test_callbacks_are_the_last_steps() -> None:
    async def daily(day: date = date(2026, 1, 1)) -> None:
        await extract("de", day)

    dag = definition(daily, on_failure=alert, on_complete=tidy).dag
    assert [(step.name, step.callback, step.bind) for step in dag] == [
        ("extract", None, {"country": {"value": "de"}, "day": "input.day"}),
        ("tidy", "on_complete", {}),
        ("alert", "on_failure", {"day": "input.day"}),
    ]


@pytest.mark.parametrize(
    ("callback", "reason"), [(alert, "day"), (print, "@app.step"), (foreign, "another application")]
)
def test_callback_that_cannot_be_called_is_refused(callback: Any, reason: str) -> None:  # noqa: ANN401 - anything
    async def daily() -> None:
        await extract("de")

    with pytest.raises(UntraceableError, match=reason):
        definition(daily, on_failure=callback)


def test_graph_that_calls_itself_is_refused() -> None:
    @app.dag(name="first")
    async def first() -> None:
        await second()

    @app.dag(name="second")
    async def second() -> None:
        await first()

    @app.dag(name="third")
    def third() -> None:
        third()

    for graph in (first, second, third):
        with pytest.raises(UntraceableError, match="calls itself, perhaps through another graph"):
            graph.definition  # noqa: B018 - it is made when it is read first


def test_constant_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)

    async def daily() -> None:
        load(loop)

    with pytest.raises(UntraceableError, match=r"`rows` of load\(\) is nested too deeply, or contains itself"):
        definition(daily)
