"""The standard variables of OpenTelemetry that decide on traces."""

from collections.abc import Mapping
from typing import Final

import pytest

from tocsin.domain.trace_context import Sampling
from tocsin.settings import SettingsError, sampling_of

ENDPOINT: Final = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_TRACES_SAMPLER": "always_on"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": " "},
        {**ENDPOINT, "OTEL_SDK_DISABLED": "True"},
        {**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://collector:4318", "OTEL_TRACES_SAMPLER": "x"},
    ],
)
def test_tracing_is_off_without_an_endpoint(environment: Mapping[str, str]) -> None:
    assert sampling_of(environment) is None


@pytest.mark.parametrize(
    ("sampler", "ratio", "expected"),
    [
        (None, None, Sampling(1, follows_parent=True)),
        ("", "0.5", Sampling(1, follows_parent=True)),
        ("always_on", "0.5", Sampling(1, follows_parent=False)),
        ("always_off", None, Sampling(0, follows_parent=False)),
        ("traceidratio", "0.01", Sampling(0.01, follows_parent=False)),
        ("traceidratio", None, Sampling(1, follows_parent=False)),
        ("parentbased_always_on", None, Sampling(1, follows_parent=True)),
        ("parentbased_always_off", None, Sampling(0, follows_parent=True)),
        ("parentbased_traceidratio", " 0.25 ", Sampling(0.25, follows_parent=True)),
    ],
)
def test_sampler_and_ratio_are_read(sampler: str | None, ratio: str | None, expected: Sampling) -> None:
    given = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": ratio}
    assert sampling_of({**ENDPOINT, **{name: text for name, text in given.items() if text is not None}}) == expected


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ("OTEL_TRACES_SAMPLER", "parentbased_parentbased_always_on"),
        ("OTEL_TRACES_SAMPLER_ARG", "1%"),
        ("OTEL_TRACES_SAMPLER_ARG", "1.5"),
        ("OTEL_TRACES_SAMPLER_ARG", "-0.1"),
        ("OTEL_TRACES_SAMPLER_ARG", "nan"),
        ("OTEL_TRACES_EXPORTER", "console"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4317"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "grpc://collector:4317"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://[::1"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:99999"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://my collector:4318"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "//collector:4318/v1/traces"),
    ],
)
def test_wrong_value_is_refused_by_name(variable: str, text: str) -> None:
    given = {**ENDPOINT, "OTEL_TRACES_SAMPLER": "traceidratio", variable: text}
    with pytest.raises(SettingsError) as raised:
        sampling_of(given)
    [problem] = raised.value.problems
    assert problem.field == variable
    assert text in (problem.value or "")


@pytest.mark.parametrize(
    "environment",
    [
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "HTTPS://user:secret@collector:4318/otlp"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4317", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://[::1]:4318/v1"},
    ],
)
def test_endpoint_in_use_is_a_url(environment: Mapping[str, str]) -> None:
    assert sampling_of(environment) == Sampling(1, follows_parent=True)


@pytest.mark.parametrize("off", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_endpoint_is_free_while_tracing_is_off(off: Mapping[str, str]) -> None:
    assert sampling_of({"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:4317", **off}) is None


def test_refused_endpoint_shows_no_password() -> None:
    with pytest.raises(SettingsError) as raised:
        sampling_of({"OTEL_EXPORTER_OTLP_ENDPOINT": "user:hunter2@collector:4318?token=hunter3"})
    assert "collector:4318" in str(raised.value)
    assert "hunter" not in str(raised.value)
