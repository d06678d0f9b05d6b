"""The settings of an installation, and where each of them came from (hip-62, Configuration).

Four places are asked, the first that names a field wins: an option of the command line, a variable of the environment, the
configuration file, the default. The file is YAML in hip-62's shape; in its strings `${NAME}` stands for a variable of the
environment and `$${` for a literal `${`. A variable is `TOCSIN_` and the path to the field, joined by two underscores
(`TOCSIN_LEADER__TTL=3s`); hip-62's own `DATABASE_URL` and `NATS_URL` are read as well.

`load` looks at the world. A plain `Settings(...)` does not: it is what its arguments and the defaults say.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeAlias
from urllib.parse import urlsplit

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    PrivateAttr,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict
from typing_extensions import override

from .domain import duration
from .domain.definition import Problem, show
from .domain.spelling.nearest import listed, nearest

CONFIG_VARIABLE: Final = "TOCSIN_CONFIG"
CONFIG_FILE: Final = Path("tocsin.yaml")
DATA_DIR: Final = Path("~/.local/share/tocsin")
DEFAULT: Final = "default"
"""The origin of what nobody set."""

MASK: Final = "******"
WITHOUT_EFFECT: Final[frozenset[str]] = frozenset()
"""Fields that are read, since hip-62 has them, and that nothing acts on yet. A test fails when something does."""

_SHORT_VARIABLES: Final = {
    "TOCSIN_NATS_URL": ("nats", "url"),
    "TOCSIN_DATABASE_URL": ("database", "url"),
    "NATS_URL": ("nats", "url"),
    "DATABASE_URL": ("database", "url"),
    "TOCSIN_REDIS_URL": ("redis", "url"),
    "REDIS_URL": ("redis", "url"),
}
_REFERENCE: Final = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}")

FieldPath: TypeAlias = tuple[str, ...]
"""Where a field lies, e.g. `("leader", "ttl")`."""


class SettingsError(ValueError):
    """The settings cannot be used; `problems` holds everything that is wrong with them."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


# --- the types of fields ---------------------------------------------------------------------------------------------


def _token(text: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9-]*", text):
        raise ValueError("must be one token of small letters, digits and hyphens, the first a letter")
    return text


def _prefix(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", text):
        raise ValueError("must be a subject: tokens of letters, digits, hyphens and underscores, joined by dots")
    return text


Duration: TypeAlias = Annotated[
    float, BeforeValidator(duration.parse), Field(gt=0), PlainSerializer(duration.short, return_type=str)
]
"""Seconds; written as `15s`, `1m30s`, `PT15S` or a number of seconds."""

Algorithm: TypeAlias = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Asymmetric ones only: with a shared secret whoever can verify a token could make one."""

Patience: TypeAlias = Annotated[
    float, BeforeValidator(duration.parse), Field(ge=0), PlainSerializer(duration.short, return_type=str)
]
"""Seconds, written as a `Duration`; there may be none."""

Port: TypeAlias = Annotated[int, Field(ge=0, le=65_535)]
Token: TypeAlias = Annotated[str, AfterValidator(_token)]
Prefix: TypeAlias = Annotated[str, AfterValidator(_prefix)]
Folder: TypeAlias = Annotated[Path, AfterValidator(Path.expanduser)]


# --- the model -------------------------------------------------------------------------------------------------------


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Server(_Section):
    """Where the HTTP API listens."""

    host: str = "0.0.0.0"  # noqa: S104 - hip-62's default: a service in a cluster
    """As long as nobody is asked for a token (`auth`), only the loopback is listened on, whatever this says."""
    port: Port = 8062
    max_body: int = Field(default=4_194_304, ge=1_024)
    """Bytes of a request."""
    request_timeout: Duration = 30.0
    """How long a request may take, a stream of events excepted."""
    keep_alive: Duration = 15.0
    """How long a connection may be idle."""
    shutdown_timeout: Duration = 10.0
    """How long requests may finish that have begun when it is asked to stop."""
    max_connections: int | None = Field(default=1_000, ge=1)
    rate: float | None = Field(default=100.0, gt=0)
    """Requests that an identity may make each second; null: any number."""
    burst: int = Field(default=200, ge=1)
    """Requests that it may make at once."""
    over_nats: bool = False
    """Answer on the subjects `<root>.api.<operation>` too. Where nobody is asked for a token, whoever may publish there is an administrator."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks whose `X-Forwarded-For` is believed; by default nobody's is."""


class Database(_Section):
    """Where the history is kept."""

    url: str = ""
    """An SQLAlchemy URL; by default an SQLite file in `data_dir`."""
    max_connections: int = Field(default=10, ge=1)


class Tls(_Section):
    """How NATS proves who it is, and we prove to it who we are. Files hold PEM."""

    ca: Folder | None = None
    """Certificates of the authorities that may vouch for the servers; by default those of the system."""
    cert: Folder | None = None
    """Our own certificate, where the servers ask for one."""
    key: Folder | None = None
    """The private key of `cert`, not encrypted."""
    server_name: str | None = None
    """The name that the servers' certificates bear, where it is not the host of the URL."""
    handshake_first: bool = False
    """Nothing is said in the open, not even the server's greeting; the servers must be set so as well."""

    @property
    def is_asked_for(self) -> bool:
        """Somebody set any of it: then nothing may go over the wire in the open."""
        return self != Tls()


def _servers(urls: str) -> str:
    if not all(_is_server(url.strip()) for url in urls.split(",")):
        raise ValueError("must be nats://HOST:PORT (or tls://, ws://, wss://), several joined by commas")
    return urls


Servers: TypeAlias = Annotated[str, AfterValidator(_servers)]


class Nats(_Section):
    """The NATS server or cluster; several URLs are joined by commas. One kind of credentials, or none."""

    url: Servers = "nats://127.0.0.1:4222"
    user: str | None = None
    password: SecretStr | None = None
    token: SecretStr | None = None
    nkey_seed: Folder | None = None
    """The file with the seed of a user's nkey (`SU…`)."""
    creds: Folder | None = None
    """The file with a user's JWT and the seed that goes with it, as `nsc generate creds` writes it."""
    inbox_prefix: Prefix = "_INBOX"
    """What answers come in on; users with a prefix of their own cannot listen to each other's."""
    tls: Tls = Tls()


class Leader(_Section):
    """The lease of the ticker that leads (hip-62, Architecture).

    What is due meanwhile fires as soon as another leads. Fast: `ttl: 2s, renew_interval: 500ms`, and a successor of a killed
    leader fires within three seconds; it costs two small writes a second.
    """

    ttl: Duration = 15.0
    """How long a leader that died is waited for. NATS counts in whole seconds: what lies between is rounded up there."""
    renew_interval: Duration = 5.0
    """How often the leader renews, and the others ask (they at least once a second)."""

    @model_validator(mode="after")
    def _is_renewed_in_time(self) -> Self:
        if self.renew_interval >= self.ttl:
            raise ValueError("`renew_interval` must be shorter than `ttl`, or the lease ends before it is renewed")
        return self


class Execution(_Section):
    """What holds for executions whose job does not say."""

    default_timeout: Duration = 300.0
    """For jobs that are applied without a timeout."""
    history_retention_days: int = Field(default=90, ge=1)


def _archive_target(text: str) -> str:
    if text == "nats" or text.startswith("file:///"):
        return text
    raise ValueError("must be `nats` (an object store there) or a folder, `file:///…`, that every node reaches")


class Archive(_Section):
    """What leaves the streams, and where it goes (hip-62, Execution History)."""

    enabled: bool = True
    target: Annotated[str, AfterValidator(_archive_target)] = "nats"
    """`nats`, an object store beside the streams; or a folder, `file:///…`, that every node reaches."""
    hot_window: Duration = 86_400.0
    """How long what is over stays in the streams."""
    max_messages: int = Field(default=500_000, ge=1)
    """How many messages the log may hold before what is younger leaves it too, if it is two minutes old.

    The server keeps every subject in memory: a million of them take it about 370 MB, and this many half of that.
    """
    interval: Duration = 300.0
    """How often it is looked for what is over."""


class Recovery(_Section):
    """What becomes of executions that stay open (cloacina, Recovery)."""

    threshold: Duration = 300.0
    """How long nothing may follow a fact before it is looked into whether an execution was lost."""
    max_attempts: int = Field(default=3, ge=0)
    """How often one execution is recovered; lost once more it is abandoned, and fails."""
    max_age: Duration = 86_400.0
    """How long ago an execution may have been asked for that is recovered; an older one that was lost is abandoned."""
    grace: Duration = 60.0
    """How long beyond its timeout an attempt may stay without a report before it has failed."""
    interval: Duration = 1.0
    """How often it is looked for what is to be done."""


class Auth(_Section):
    """Who may call the HTTP API: by the tokens of an identity provider, and those of `tocsin tokens`."""

    iam_url: str | None = None
    """The identity provider. It issues the tokens, and says in its OpenID configuration where its keys are."""
    verify_tokens: bool = True
    """false: nobody asks the identity provider."""
    issuer: str | None = None
    """What the tokens name as their issuer; by default `iam_url`."""
    audience: str = "tocsin"
    """What the tokens must be for."""
    jwks_url: str | None = None
    """Where the keys are, for an identity provider without an OpenID configuration."""
    algorithms: tuple[Algorithm, ...] = ("RS256", "ES256", "EdDSA")
    """What the tokens may be signed with."""
    identity_claim: str = "sub"
    roles_claim: str = "roles"
    """Where the roles are: a list, or one text with spaces; dotted where it lies in other claims."""
    leeway: Duration = 30.0
    """How far the provider's clock may differ from ours."""

    @property
    def has_provider(self) -> bool:
        """Whether there is an identity provider to ask."""
        return self.verify_tokens and (self.iam_url is not None or self.jwks_url is not None)

    @property
    def expected_issuer(self) -> str | None:
        """What the tokens must name as their issuer."""
        return self.issuer or self.iam_url

    @model_validator(mode="after")
    def _names_an_issuer(self) -> Self:
        if self.jwks_url is not None and self.expected_issuer is None:
            raise ValueError("`jwks_url` needs an `issuer` beside it: whose tokens are accepted")
        return self


class Redis(_Section):
    """What copies of the API share that need not outlive them."""

    url: str | None = None
    """By default each copy counts for itself."""


class Metrics(_Section):
    """Where Prometheus finds the figures."""

    enabled: bool = True
    port: Port = 9090
    prefix: Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")] = "hanzo_scheduler"
    """What their names begin with; by default as hip-62 has them, so that its alerts work."""


class Queue(_Section):
    """How the tasks of a queue reach their executors: from the log itself, or over hip-62's MQ subjects."""

    transport: Literal["native", "mq"] = "native"


class Stages(_Section):
    """How the stages behave that this installation runs."""

    ack_wait: Duration = 30.0
    """How long a stage may take over a message before it is given to another copy, or to its successor after a crash."""


class Worker(_Section):
    """How executors and stages behave that this installation runs."""

    concurrency: int | None = Field(default=None, ge=1)
    """How many tasks `tocsin worker` runs at the same time; by default as many as the worker's own code says."""
    shutdown_timeout: Duration = 30.0
    """How long a stage may finish what it handles once it is asked to stop."""
    ack_wait: Duration = 30.0
    """How long a task may go without a sign of life before it is given to another executor."""
    lease: Duration = 300.0
    """The same for executors that take tasks over HTTP and say no visibility timeout of their own."""
    cancel_grace: Patience = 10.0
    """How long a handler that heeds `context.cancelled` may go on once its execution is called off; `0s`: not at all."""


class Settings(BaseSettings):
    """Everything that can be set. Immutable; made by `load`, or with what is given and the defaults."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix="TOCSIN_", env_nested_delimiter="__", use_attribute_docstrings=True
    )

    root: Token = "tocsin"
    """The first token of every subject, and the prefix of every stream and bucket."""
    public_prefix: Prefix = "cron"
    trigger_prefix: Prefix = "cron.trigger"
    mq_prefix: Prefix = "mq"
    replicas: int | None = Field(default=None, ge=1, le=5)
    """How many servers keep each stream; by default 1 for what is made new, and as it is for what is there."""
    data_dir: Folder = DATA_DIR.expanduser()
    jobs_file: Path | None = None
    server: Server = Server()
    database: Database = Database()
    nats: Nats = Nats()
    leader: Leader = Leader()
    execution: Execution = Execution()
    recovery: Recovery = Recovery()
    archive: Archive = Archive()
    auth: Auth = Auth()
    metrics: Metrics = Metrics()
    redis: Redis = Redis()
    stages: Stages = Stages()
    worker: Worker = Worker()
    queues: dict[str, Queue] = {}

    _origins: dict[FieldPath, str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _keep_history_with_the_data(cls, data: Any) -> Any:  # noqa: ANN401 - before validation
        database = data.get("database", {})
        if isinstance(database, Mapping) and not database.get("url"):
            folder = Path(data.get("data_dir") or DATA_DIR).expanduser()
            return {**data, "database": {**database, "url": f"sqlite:///{folder / 'history.db'}"}}
        return data

    @classmethod
    @override
    def settings_customise_sources(  # the signature is pydantic-settings'
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only the arguments: `load` puts the layers together itself, since it also tells which field came from where."""
        return (init_settings,)


# --- reading ---------------------------------------------------------------------------------------------------------


def load(config: Path | None = None, *, options: Mapping[FieldPath, object] | None = None) -> Settings:
    """The settings in force.

    Args:
        config: the configuration file; None: `TOCSIN_CONFIG`, else `./tocsin.yaml` if there is one.
        options: what the command line says, by path; None values were not given.

    Raises:
        SettingsError: a file cannot be read, a field is unknown, a value cannot be used, a variable is not set.
    """
    layers = (_options(options or {}), _variables(), _short_variables(), _file(config))
    chosen: dict[FieldPath, object] = {}
    origins: dict[FieldPath, str] = {}
    problems: list[Problem] = []
    for layer in layers:
        for path, value in _leaves(layer.values):
            if any(path[: len(known)] == known or known[: len(path)] == path for known in chosen):
                continue
            origins[path] = layer.origin(path)
            try:
                chosen[path] = _resolved(path, value, layer.source) if layer.source else value
            except SettingsError as error:
                problems += error.problems
    if problems:
        raise SettingsError(*problems)
    try:
        settings = Settings(**_nested(chosen))
    except ValidationError as error:
        raise SettingsError(*_worded(error, origins)) from None
    settings._origins.update(origins)  # noqa: SLF001 - this module's own
    return settings


@dataclass(frozen=True, slots=True)
class _Layer:
    """What one place says. `source` is the file it is, if it is one."""

    values: Mapping[str, Any]
    named: Mapping[FieldPath, str] | str
    """The origin of each path, or of all."""
    source: str | None = None

    def origin(self, path: FieldPath) -> str:
        if isinstance(self.named, str):
            return self.named
        return next(self.named[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.named)


def _options(given: Mapping[FieldPath, object]) -> _Layer:
    options = {path: value for path, value in given.items() if value is not None}
    return _Layer(_nested(options), "command line")


def _variables() -> _Layer:
    """Variables with the whole path in their name; a section as a whole is JSON, and a path in it may add to that."""
    try:
        values = EnvSettingsSource(Settings)()
    except ValueError as error:
        raise SettingsError(Problem(f"{error}: {error.__cause__}")) from None
    named: dict[FieldPath, str] = {}
    for variable in os.environ:
        if variable.upper().startswith("TOCSIN_"):
            named[tuple(variable[len("TOCSIN_") :].lower().split("__"))] = variable
    return _Layer(values, named)


def _short_variables() -> _Layer:
    given: dict[FieldPath, tuple[str, str]] = {}
    for variable, path in _SHORT_VARIABLES.items():
        if os.environ.get(variable):
            given.setdefault(path, (variable, os.environ[variable]))
    return _Layer(
        _nested({path: value for path, (_, value) in given.items()}),
        {path: variable for path, (variable, _) in given.items()},
    )


def _file(config: Path | None) -> _Layer:
    named = config or (Path(os.environ[CONFIG_VARIABLE]) if os.environ.get(CONFIG_VARIABLE) else None)
    path = named or CONFIG_FILE
    try:
        written = yaml.safe_load(path.read_text("utf-8"))
    except FileNotFoundError:
        if named is None:
            return _Layer({}, "")
        raise SettingsError(Problem("no such file", source=str(path))) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(Problem(str(error), source=str(path))) from None
    except yaml.YAMLError as error:
        raise SettingsError(Problem(f"not YAML: {' '.join(str(error).split())}", source=str(path))) from None
    if not isinstance(written, dict | None):
        raise SettingsError(Problem(f"expected a mapping of settings, and this is {show(written)}", source=str(path)))
    return _Layer({str(name): value for name, value in (written or {}).items()}, str(path), str(path))


def _resolved(path: FieldPath, value: object, source: str) -> object:
    """A value of the file, with the variables that it refers to in it."""
    if not isinstance(value, str):
        return value

    def variable(found: re.Match[str]) -> str:
        name = found["name"]
        if name is None:
            return "${"
        if name not in os.environ:
            reason = f"the environment variable `{name}` is not set"
            raise SettingsError(Problem(reason, field=".".join(path), value=show(found[0]), source=source))
        return os.environ[name]

    return _REFERENCE.sub(variable, value)


def _leaves(values: Mapping[str, Any], path: FieldPath = ()) -> Iterator[tuple[FieldPath, object]]:
    for name, value in values.items():
        here = (*path, str(name))
        if isinstance(value, Mapping):
            yield from _leaves(value, here)
        elif value is not None:  # a section or a field that is only named says nothing
            yield here, value


def _nested(values: Mapping[FieldPath, object]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, value in values.items():
        section = nested
        for name in path[:-1]:
            section = section.setdefault(name, {})
        section[path[-1]] = value
    return nested


def _worded(error: ValidationError, origins: Mapping[FieldPath, str]) -> Iterator[Problem]:
    for details in error.errors(include_url=False):
        path = tuple(str(part) for part in details["loc"])
        field = ".".join(path)
        source = origins.get(path)
        if details["type"] == "extra_forbidden":
            known = sorted(_fields_of(path[:-1]))
            meant = nearest(path[-1], known)
            right = ".".join((*path[:-1], meant or ""))
            reason = f", did you mean `{right}`?" if meant else f": the settings here are {listed(known)}"
            source = source or next((o for p, o in origins.items() if p[: len(path)] == path), None)
            yield Problem(reason, field=field, source=source, unknown=True)
            continue
        cause = details.get("ctx", {}).get("error")
        reason = str(cause) if cause else details["msg"].removeprefix("Input ").replace("should", "must")
        shown = None if isinstance(details["input"], Mapping) or _is_secret(path) else show(details["input"])
        yield Problem(reason, field=field, value=shown, source=source)


def _fields_of(path: FieldPath) -> set[str]:
    """The names of the fields of a section."""
    if not path:
        return set(Settings.model_fields)
    if path[0] == "queues":
        return set(Queue.model_fields)
    model: Any = Settings
    for name in path:
        model = model.model_fields[name].annotation
    return set(model.model_fields)


# --- showing ---------------------------------------------------------------------------------------------------------


def origins(settings: Settings) -> dict[str, str]:
    """Where each field's value came from: `default`, `command line`, the path of the file, or the variable's name."""
    return {".".join(path): settings._origins.get(path, DEFAULT) for path, _ in _dumped(settings)}  # noqa: SLF001


def shown(settings: Settings) -> dict[str, JsonValue]:
    """Each field's value as it may be shown: durations as people write them, secrets and passwords in URLs masked."""
    return {".".join(path): _masked(path, value) for path, value in _dumped(settings)}


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
    if _is_secret(path):
        return MASK
    return ",".join(without_password(url) for url in value.split(",")) if path[-1].endswith("url") else value


def _is_server(url: str) -> bool:
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        return parts.scheme in {"nats", "tls", "ws", "wss"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or too large
        return False


def without_password(url: str) -> str:
    """A URL as it may be shown."""
    parts = urlsplit(url)
    if parts.password is None and not (parts.username and parts.scheme in {"nats", "tls", "ws", "wss"}):
        return url
    # A user without a password is a token where NATS is spoken.
    hidden = f"{parts.username}:{MASK}" if parts.password is not None else MASK
    return url.replace(parts.netloc, f"{hidden}@{parts.netloc.rpartition('@')[2]}", 1)


def _is_secret(path: Sequence[str]) -> bool:
    return path[-1:] in {("password",), ("token",)}
