"""Types of settings, with their validators."""

import re
from collections.abc import Callable, Collection
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, SecretStr

from ..domain import duration
from ..domain.agent import checked_shards
from ..domain.documented_model import DocumentedModel
from ..domain.schedule import validate_timezone


def must(accepts: Callable[[str], object], reason: str) -> AfterValidator:
    """Return a validator that refuses texts for a reason, unless `accepts` does not."""

    def check(text: str) -> str:
        if not accepts(text):
            raise ValueError(reason)
        return text

    return AfterValidator(check)


def form(pattern: str, reason: str) -> AfterValidator:
    """Return the validator of a text that must have a form as a whole."""
    return must(re.compile(pattern).fullmatch, reason)


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"`{twice[0]}` is listed twice")
    return names


_OWN_PARAMETERS = frozenset(
    {"response_type", "response_mode", "client_id", "redirect_uri", "scope", "state", "nonce"}
    | {"code_challenge", "code_challenge_method", "request", "request_uri"}
)
"""Parameters of a sign-in that Tocsin sets itself, or that would replace them."""

Duration: TypeAlias = Annotated[
    float, BeforeValidator(duration.parse), Field(gt=0), PlainSerializer(duration.short, return_type=str)
]
"""Seconds; written as `15s`, `1m30s`, `PT15S` or a number of seconds."""

Algorithm: TypeAlias = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Asymmetric algorithms only: a shared secret would let every verifier make tokens."""

Patience: TypeAlias = Annotated[
    float, BeforeValidator(duration.parse), Field(ge=0), PlainSerializer(duration.short, return_type=str)
]
"""Seconds, written as a `Duration`; may be 0."""


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError(
            "`~` is the home folder, and this user has none: set HOME, or write an absolute path"
        ) from None


Scope: TypeAlias = Annotated[str, Field(pattern=r"^[!#-\[\]-~]+$")]
ParameterName: TypeAlias = Annotated[
    str,
    must(
        lambda name: name not in _OWN_PARAMETERS and re.fullmatch(r"[A-Za-z0-9_.-]+", name),
        "must be a name of letters, digits, `_`, `.` and `-`, and none that the sign-in sets itself",
    ),
]
Port: TypeAlias = Annotated[int, Field(ge=0, le=65_535)]
DeclaredShards: TypeAlias = Annotated[tuple[str, ...], AfterValidator(checked_shards)]
ScheduleZone: TypeAlias = Annotated[str, AfterValidator(validate_timezone)]
Token: TypeAlias = Annotated[
    str, form(r"[a-z][a-z0-9-]*", "must be one token of small letters, digits and hyphens, the first a letter")
]
DistinctTokens: TypeAlias = Annotated[tuple[Token, ...], AfterValidator(_distinct)]
Prefix: TypeAlias = Annotated[
    str,
    form(
        r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*",
        "must be a subject: tokens of letters, digits, hyphens and underscores, joined by dots",
    ),
]
Folder: TypeAlias = Annotated[Path, AfterValidator(_expanded)]


def _names_a_server(url: str, schemes: Collection[str]) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number, or too large
        return False


def is_http_url(url: str) -> bool:
    return _names_a_server(url, {"http", "https"}) and url.isascii() and url.isprintable() and " " not in url


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


_DEFAULT_PORTS = {"http": 80, "https": 443}


def origin(url: str) -> str:
    """Return the origin of a URL without a path, as browsers write it."""
    parts = urlsplit(url)
    if not is_http_url(url) or parts.path not in {"", "/"} or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("must be a URL without a path, such as `https://tocsin.example.com`")
    host = parts.netloc.lower()
    return f"{parts.scheme}://{host.removesuffix(f':{_DEFAULT_PORTS[parts.scheme]}')}"


TRACE_ID = "{trace_id}"
"""Stands for the id of a trace in `server.trace_url`."""


def trace_page(url: str) -> str:
    """Check the address of a trace."""
    if url.count(TRACE_ID) != 1 or not is_http_url(url) or TRACE_ID in urlsplit(url).netloc:
        raise ValueError("must be a URL that names the trace, such as `https://jaeger.example.com/trace/{trace_id}`")
    return url


def monitor_url(secret: SecretStr) -> SecretStr:
    """Check the URL of a monitor."""
    if not is_http_url(secret.get_secret_value()):
        raise ValueError("must be a URL of a monitor, such as `https://monitor.example.com/ping/…`")
    return secret


MIN_ADMIN_TOKEN: Final = 32
"""Characters that `auth.admin_token` has at least."""
_BEARER_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""The form of a token in a header (RFC 6750)."""


def strong_token(secret: SecretStr) -> SecretStr:
    """Check the token of an administrator."""
    text = secret.get_secret_value()
    if len(text) < MIN_ADMIN_TOKEN or not _BEARER_TOKEN.fullmatch(text):
        raise ValueError(
            f"must have at least {MIN_ADMIN_TOKEN} random characters, of letters, digits and `-._~+/=` only: "
            "make it with `openssl rand -hex 32`, and end its file without a new line"
        )
    return secret


def _servers(urls: str) -> str:
    full = (url.strip() if "://" in url else f"nats://{url.strip()}" for url in urls.split(","))
    if not all(_names_a_server(url, {"nats", "tls", "ws", "wss"}) for url in full):
        raise ValueError("must be nats://HOST:PORT (or tls://, ws://, wss://), several joined by commas")
    return urls


Servers: TypeAlias = Annotated[str, AfterValidator(_servers)]


class Section(DocumentedModel, frozen=True, extra="forbid"):
    """A section: immutable; unknown fields are refused."""
