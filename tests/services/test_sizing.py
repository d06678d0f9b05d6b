"""The calculator of `tocsin size`: its figures against a real run, and the limits of the archive."""

from dataclasses import replace

import pytest
from benchmarks.execution_sizes import Shape, sample
from benchmarks.part import FUNCTION
from benchmarks.sizes import PAGE, kept, table

from tocsin.cli.installation.size import limits_of
from tocsin.domain.definition import JobDefinition
from tocsin.services.sizing import Limits, Load, constants, estimate, execution_size
from tocsin.settings import Settings

DAY_S = 86_400
LOAD = Load(jobs=1_000, per_day=50_000, retention_days=90)
TOLERANCE = 0.08
"""Of the bytes; an event more is at least 15 %, and counts as a message in any case."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [Shape(), Shape(input=900, result=400), Shape(steps=4, input=700, result=300)], ids=str
)
async def test_prediction_agrees_with_a_run(shape: Shape) -> None:
    predicted = execution_size(constants(), steps=shape.steps, input_bytes=shape.input, result_bytes=shape.result)

    measured = (await sample(shape, jobs=10)).execution

    stored = {stream: messages for stream, (messages, _) in measured.items() if messages}
    assert {stream: size.messages for stream, size in predicted.items()} == pytest.approx(stored)
    assert {stream: size.bytes for stream, size in predicted.items()} == pytest.approx(
        {stream: measured[stream][1] for stream in stored}, rel=TOLERANCE
    )


@pytest.mark.slow
@pytest.mark.full
async def test_traces_of_executions_are_measured() -> None:
    found = await kept(JobDefinition(name="measured", function=FUNCTION, overlap_policy="allow"), 50)

    assert 0.05 < found.archive_per_byte < 0.5
    assert found.disk_per_byte > 0
    assert min(found.sqlite, found.postgresql, found.cpu_ms) > 0


def test_executions_stay_for_the_hot_window() -> None:
    found = estimate(LOAD, constants())

    assert found.hot_s == DAY_S
    assert found.streams["LOG"].messages == pytest.approx(50_000 * found.execution["LOG"].messages)
    assert found.max_messages < Limits().max_messages


def test_full_log_is_archived_earlier() -> None:
    found = estimate(replace(LOAD, per_day=500_000), constants())

    assert found.hot_s == pytest.approx(DAY_S * 500_000 / (500_000 * found.execution["LOG"].messages))
    assert found.streams["LOG"].messages == pytest.approx(500_000)
    assert found.max_messages == 500_000 * found.execution["LOG"].messages


def test_full_stream_of_reports_is_archived_earlier() -> None:
    found = estimate(replace(LOAD, result_bytes=60_000), constants())

    assert found.streams["REPORTS"].bytes == pytest.approx(Limits().max_input_bytes / 2)
    assert found.is_input_limited
    enough = replace(Limits(), max_input_bytes=found.max_input_bytes)
    assert estimate(replace(LOAD, result_bytes=60_000), constants(), enough).hot_s == DAY_S


def test_executions_stay_for_two_minutes_at_least() -> None:
    found = estimate(replace(LOAD, per_day=1_000_000_000), constants())

    assert found.hot_s == 120


def test_disk_includes_the_archive_only_in_nats() -> None:
    inside, outside = (estimate(LOAD, constants(), Limits(is_archive_in_nats=each)) for each in (True, False))

    assert inside.nats_disk - outside.nats_disk == pytest.approx(outside.archive, abs=1)
    assert estimate(replace(LOAD, replicas=3), constants()).archive == pytest.approx(3 * inside.archive, abs=3)


def test_each_field_of_the_load_costs_something() -> None:
    few = estimate(LOAD, constants())

    for field, of in {
        "jobs": "stages_memory",
        "per_day": "cores",
        "steps": "postgresql",
        "retention_days": "sqlite",
        "input_bytes": "archive",
        "result_bytes": "nats_disk",
        "open_tasks": "stages_memory",
    }.items():
        more = estimate(replace(LOAD, **{field: 2 * getattr(LOAD, field) + 1}), constants())
        assert getattr(more, of) > getattr(few, of), field


def test_optional_streams_reserve_their_limits() -> None:
    usual = Settings()
    found = limits_of(usual)
    assert found == Limits()

    more = {
        "triggers": {"subjects": ["orders.>"], "webhooks": {"SECRET": ["/hooks/a"]}},
        "queues": {"outside": {"transport": "mq"}},
        "archive": {"enabled": False},
    }
    further = limits_of(Settings.model_validate(more))
    assert further.output_bytes - found.output_bytes == usual.triggers.max_bytes + 2 * usual.archive.max_input_bytes
    assert not further.is_archived


def test_idle_installation_needs_little() -> None:
    found = estimate(Load(jobs=0, per_day=0, retention_days=1, open_tasks=0), constants())

    assert (found.nats_disk, found.archive, found.sqlite, found.cores) == (0, 0, 0, 0)
    assert found.hot_s == DAY_S
    assert found.stages_memory > 0


def test_page_has_the_measured_sizes() -> None:
    assert f"<!-- sizes -->\n{table(constants())}\n<!-- /sizes -->" in PAGE.read_text("utf-8")
