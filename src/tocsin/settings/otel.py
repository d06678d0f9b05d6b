"""The standard variables of OpenTelemetry that decide on traces."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from ..domain.definition import DefinitionProblem, show
from ..domain.formats.document import listed
from ..domain.trace_context import Sampling
from .loader import SettingsError

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL: Final = "http/protobuf"
EXPORTER: Final = "OTEL_TRACES_EXPORTER"
SAMPLER: Final = "OTEL_TRACES_SAMPLER"
RATIO: Final = "OTEL_TRACES_SAMPLER_ARG"
DISABLED: Final = "OTEL_SDK_DISABLED"

_PARENT: Final = "parentbased_"
_RATIOS: Final[Mapping[str, float | None]] = {"always_on": 1.0, "always_off": 0.0, "traceidratio": None}
"""The ratio of each sampler; None: that of the variable `RATIO`."""
SAMPLERS: Final = tuple(f"{prefix}{name}" for name in _RATIOS for prefix in ("", _PARENT))


def sampling_of(environment: Mapping[str, str]) -> Sampling | None:
    """Return the sampling of traces; None: tracing is off, as without an endpoint."""
    given = {name: text.strip() for name, text in environment.items() if name.startswith("OTEL_") and text.strip()}
    exporter = given.get(EXPORTER, "otlp")
    if given.get(DISABLED, "").lower() == "true" or not any(name in given for name in ENDPOINTS) or exporter == "none":
        return None
    if exporter != "otlp":
        raise _wrong(EXPORTER, exporter, "must be `otlp` or `none`")
    endpoint = next(name for name in ENDPOINTS if name in given)
    if not _is_url(given[endpoint]):
        reason = f"must be a URL that begins with http:// or https://, such as http://localhost:4318; set {EXPORTER}=none for no traces"
        without_secrets = given[endpoint].rpartition("@")[2].partition("?")[0]  # no user, no password and no query
        raise _wrong(endpoint, without_secrets, reason)
    protocol = next((name for name in PROTOCOLS if name in given), None)
    if protocol is not None and given[protocol] != PROTOCOL:
        raise _wrong(protocol, given[protocol], f"must be `{PROTOCOL}`, to port 4318 of most collectors")
    sampler = given.get(SAMPLER, f"{_PARENT}always_on")
    name = sampler.removeprefix(_PARENT)
    if name not in _RATIOS:
        raise _wrong(SAMPLER, sampler, f"must be one of {listed(SAMPLERS)}")
    ratio = _RATIOS[name]
    return Sampling(_ratio(given.get(RATIO, "1")) if ratio is None else ratio, sampler != name)


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises for a port that cannot be
    except ValueError:
        return False
    has_space = any(character.isspace() for character in text)
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and not has_space


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise _wrong(RATIO, text, "must be a number from 0 to 1: the part of all traces to export")
    return ratio


def _wrong(variable: str, text: str, reason: str) -> SettingsError:
    return SettingsError(DefinitionProblem(reason, field=variable, value=show(text), source="the environment"))
