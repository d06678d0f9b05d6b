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
    ],
)
def test_unknown_value_is_refused_by_name(variable: str, text: str) -> None:
    given = {**ENDPOINT, "OTEL_TRACES_SAMPLER": "traceidratio", variable: text}
    with pytest.raises(SettingsError) as raised:
        sampling_of(given)
    [problem] = raised.value.problems
    assert problem.field == variable
    assert text in (problem.value or "")
