"""Everything that can be set, section by section, with its default."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from typing_extensions import override

from .fields import (
    Algorithm,
    Duration,
    Folder,
    Patience,
    Port,
    Prefix,
    Servers,
    Token,
    archive_target,
)

DATA_DIR: Final = Path("~/.local/share/tocsin")
FieldPath: TypeAlias = tuple[str, ...]
"""Where a field lies, e.g. `("leader", "ttl")`."""

WITHOUT_EFFECT: Final[frozenset[str]] = frozenset()
"""Fields that are read, since hip-62 has them, and that nothing acts on yet. A test fails when something does."""


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
    """Connections at once; null: any number."""
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


class Archive(_Section):
    """What leaves the streams, and where it goes (hip-62, Execution History)."""

    enabled: bool = True
    target: Annotated[str, AfterValidator(archive_target)] = "nats"
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
