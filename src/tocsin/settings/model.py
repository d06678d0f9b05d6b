"""The sections of the settings, each field with its default and its documentation."""

from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
    model_validator,
)

from ..domain.definition import Name
from ..domain.token_bucket import TokenBucket
from .fields import (
    TRACE_ID,
    Algorithm,
    DeclaredShards,
    DistinctTokens,
    Duration,
    Folder,
    ParameterName,
    Patience,
    Port,
    Prefix,
    ScheduleZone,
    Scope,
    Section,
    Servers,
    Token,
    monitor_url,
    origin,
    strong_token,
    trace_page,
)
from .s3 import S3


class Server(Section):
    """The HTTP API."""

    host: str = "0.0.0.0"  # noqa: S104 - hip-62's default: a service in a cluster
    """Address to listen on. Without any token (`auth.admin_token`, `tocsin tokens create`) and identity provider (`auth.iam_url`), the API listens on the loopback address only."""
    port: Port = 8062
    """TCP port of the API; 0 takes a free port."""
    max_body: int = Field(default=4_194_304, ge=1_024)
    """Maximum size of a request body in bytes."""
    request_timeout: Duration = 30.0
    """Maximum duration of a request; event streams are exempt."""
    keep_alive: Duration = 15.0
    """Time after which an idle connection is closed."""
    header_timeout: Duration = 10.0
    """Time within which the head of a request must arrive."""
    write_timeout: Duration = 30.0
    """Time after which a connection is closed if its client reads nothing of an answer."""
    shutdown_timeout: Duration = 10.0
    """Time that running requests get to finish at shutdown."""
    max_connections: int | None = Field(default=1_000, ge=1)
    """Maximum number of connections; null: unlimited. The limit of open files of the process, less 256, is a limit too.

    A new connection beyond it replaces the connection that has waited longest for a request. If each runs a request, the answer is 503."""
    max_connections_per_client: int | None = Field(default=250, ge=1)
    """Maximum number of connections of one client (an IPv4 address, or an IPv6 network of 64 bits); null: unlimited.

    Addresses in `trusted_proxies` are exempt, because many clients share them."""
    max_event_streams: int | None = Field(default=200, ge=1)
    """Maximum number of clients that follow events (`/v1/events`); null: unlimited. Each takes one of `max_connections`.

    Clients that are bound to the same namespaces may use half of them."""
    max_event_streams_per_caller: int | None = Field(default=10, ge=1)
    """Maximum number of these streams of one identity; null: unlimited. Calls of gRPC's `WatchEvents` are among them."""
    rate: float | None = Field(default=100.0, gt=0)
    """Requests per second that each identity may make; null: unlimited."""
    burst: int = Field(default=200, ge=1)
    """Requests that an identity may make at once, above its rate."""
    over_nats: bool = False
    """Also serve the API on the subjects `<root>.api.<operation>`. Without any token, every publisher there is an administrator."""
    console: bool = True
    """Serve the console in the browser at `/console`."""
    public_url: Annotated[str, AfterValidator(origin)] | None = None
    """Address at which browsers reach the API through a proxy, such as `https://tocsin.example.com`; by default that of the request."""
    trace_url: Annotated[str, AfterValidator(trace_page)] | None = None
    """Address of a trace in your tracing tool, such as `https://jaeger.example.com/trace/{trace_id}`: executions link to it."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of proxies whose `X-Forwarded-For` header is believed; none by default.

    A proxy should limit the connections of its own clients."""

    def trace_link(self, trace_id: str) -> str | None:
        """Return the address of a trace; None: no tracing tool is set."""
        return None if self.trace_url is None else self.trace_url.replace(TRACE_ID, trace_id)

    def console_url(self, url: str) -> str | None:
        """Return the URL of the console; None: it is switched off."""
        return f"{self.public_url or url}/console" if self.console else None


class Database(Section):
    """The database of the history."""

    url: str = ""
    """SQLAlchemy URL of the history; by default an SQLite file in `data_dir`."""
    max_connections: int = Field(default=10, ge=1)
    """Maximum number of database connections of one process."""


class Tls(Section):
    """TLS between Tocsin and NATS. All files hold PEM."""

    ca: Folder | None = None
    """File with the certificates of trusted authorities; by default those of the system."""
    cert: Folder | None = None
    """File with the client certificate, for servers that require a certificate."""
    key: Folder | None = None
    """File with the unencrypted private key of `cert`."""
    server_name: str | None = None
    """Host name in the servers' certificates; by default the host of the URL."""
    handshake_first: bool = False
    """Start TLS before the server's greeting; the servers need the same setting."""

    @property
    def is_required(self) -> bool:
        """A field is set, so no connection without TLS is allowed."""
        return self != Tls()


class Nats(Section):
    """The NATS server or cluster. Set at most one kind of credentials.

    Files of credentials and of `nats.tls` are read again at each connection, so a replaced file needs no restart.
    """

    url: Servers = "nats://127.0.0.1:4222"
    """URL of the server; several URLs of a cluster are joined by commas."""
    user: str | None = None
    """User name, together with `password`."""
    password: SecretStr | None = None
    """Password of `user`; `${file:/PATH}` for a file that is read at each connection."""
    token: SecretStr | None = None
    """Authentication token; `${file:/PATH}` likewise."""
    nkey_seed: Folder | None = None
    """File with the seed of a user's nkey (`SU…`)."""
    creds: Folder | None = None
    """File with a user's JWT and seed, as `nsc generate creds` writes it."""
    inbox_prefix: Prefix = "_INBOX"
    """Subject prefix of replies; users with different prefixes cannot read each other's replies."""
    fast_client: Literal["auto", "off"] = "auto"
    """`auto`: use private names of nats-py where they are as expected, for a third of the CPU time; `off`: never.

    nats-py itself stops reading at a subject that is no UTF-8 or has a form feed, which a program outside may publish: `off` is for
    tests."""
    tls: Tls = Tls()


class Leader(Section):
    """The leader leases (hip-62, Architecture); that of the matcher lives three seconds at most.

    An instant that comes while no ticker leads fires when the next ticker leads: within six seconds of a kill. With `ttl: 15s,
    renew_interval: 5s`, as in hip-62, there are fewer writes, and a successor fires within 17 seconds.
    """

    ttl: Duration = 4.0
    """Time after which the lease of a dead leader ends; NATS rounds it up to whole seconds.

    If the lease is free for as long, a process leads although its clock is wrong.
    """
    renew_interval: Duration = 1.0
    """Time between renewals of the lease; other candidates try as often, and at least twice a second."""

    @model_validator(mode="after")
    def _is_renewed_in_time(self) -> Self:
        if self.renew_interval >= self.ttl:
            raise ValueError("`renew_interval` must be shorter than `ttl`, or the lease ends before it is renewed")
        return self


class Execution(Section):
    """Defaults for executions."""

    default_timeout: Duration = 300.0
    """Timeout of jobs that are applied without a timeout."""
    default_timezone: ScheduleZone = "UTC"
    """Time zone of schedules that are applied without a time zone. Statements in SQL have UTC."""
    default_connection: Token | None = None
    """Name in `builtin.sql.connections` for `AS`, `CALL`, `job_sql` and `procedure` of ScratchBird that name no connection; null: they must."""
    history_retention_days: int = Field(default=90, ge=1)
    """Days for which the history keeps finished executions and resolved dead letters."""


class Backup(Section):
    """Stores outside this machine, to which `tocsin backup` copies an installation."""

    s3: S3 = S3()
    nats: Nats | None = None
    """NATS whose object stores are used for `nats-object://BUCKET/NAME`; by default that of the installation, which a disaster may take too."""


class Screener(Section):
    """Screening of what users outside publish for streams."""

    enabled: bool = False
    """Let `tocsin permissions` lead what users outside publish to the screener, which stores it without their headers.

    On a cluster of nats-server 2.14 or later a header can stop a stream. While no screener runs, messages of programs, workers and MQ executors are
    refused."""


class Notary(Section):
    """Signed checkpoints of the log."""

    key: Folder | None = None
    """File with the private key of `tocsin keys create`; by default nothing is signed.

    Where this is set, `tocsin permissions` includes the notary's user. Only the notary must be able to read the file.
    """
    interval: Duration = 60.0
    """Time between two checkpoints. A checkpoint covers 10,000 messages at most."""


class Heartbeat(Section):
    """Signs of life for a monitor outside, which notices when Tocsin itself is gone."""

    url: Annotated[SecretStr, AfterValidator(monitor_url)] | None = None
    """URL that the leading ticker requests while instants are decided on time; by default none. It is shown masked."""
    every: Duration = Field(default=60.0, ge=10)
    """Time between two requests. Let the monitor wait for a few of them, and for `leader.ttl`."""


class Output(Section):
    """Output of running steps: their lines, progress and heartbeats.

    An execution keeps its last 200 lines. Output is best effort: a full stream drops its oldest messages.
    """

    max_age: Duration = Field(default=604_800.0, ge=120)
    """Time for which output is kept, at least two minutes."""
    max_bytes: int = Field(default=268_435_456, ge=1_048_576)
    """Size of the stream of lines, and of the stream of progress and heartbeats. Each server reserves it for each of both."""


class Recovery(Section):
    """Recovery of executions that stay open (cloacina, Recovery)."""

    threshold: Duration = 300.0
    """Time without a new fact after which an open execution is checked."""
    max_attempts: int = Field(default=3, ge=0)
    """Number of recoveries of one execution; when it is lost again, it fails."""
    max_age: Duration = 86_400.0
    """Age up to which a lost execution is recovered, from the time at which its next event was due; an older execution fails."""
    grace: Duration = 60.0
    """Time beyond its timeout after which an attempt without a report fails."""


class Auth(Section):
    """Authentication of HTTP callers: tokens of an identity provider, and those of `tocsin tokens`."""

    iam_url: str | None = None
    """URL of the identity provider; its OpenID configuration names its keys. By default there is no provider."""
    verify_tokens: bool = True
    """Verify tokens of the identity provider; false: its tokens are not accepted."""
    issuer: str | None = None
    """Issuer that tokens must name; by default `iam_url`."""
    audience: str = "tocsin"
    """Audience that tokens must name."""
    jwks_url: str | None = None
    """URL of the keys, for an identity provider without an OpenID configuration."""
    algorithms: tuple[Algorithm, ...] = ("RS256", "ES256", "EdDSA")
    """Accepted signature algorithms."""
    identity_claim: str = "sub"
    """Claim with the caller's identity, which events record."""
    roles_claim: str = "roles"
    """Claim with the roles: a list, or a text with spaces; a dotted name reaches into nested claims."""
    queues_claim: str = "queues"
    """Claim with the queues of the role `scheduler-worker`, in the same forms."""
    functions_claim: str = "functions"
    """Claim with the functions of the role `scheduler-worker`, such as `mail/*`; without it, all functions of its queues."""
    namespaces_claim: str = "namespaces"
    """Claim with the namespaces to which the caller is bound, in the same forms; without it, the whole installation."""
    leeway: Duration = 30.0
    """Accepted difference between the provider's clock and ours."""
    admin_token: Annotated[SecretStr, AfterValidator(strong_token)] | None = None
    """Token with the role `scheduler-admin`, for an installation whose API must require tokens from its first start. It is shown masked.

    It has at least 32 random characters (`openssl rand -hex 32`). Events record the identity `admin-token`. Another value replaces it when
    the API starts again."""
    client_id: str | None = None
    """Client at the identity provider through which people sign in to the console; by default they sign in with tokens only.

    The provider must know the redirect URL `<server.public_url>/console/callback`."""
    client_secret: SecretStr | None = None
    """Secret of `client_id`, if the provider gave it one. It is shown masked."""
    scopes: tuple[Scope, ...] = ("openid",)
    """Scopes that the sign-in requests, `openid` among them."""
    sign_in_parameters: dict[ParameterName, str] = Field(default_factory=dict)
    """More parameters of the address at which people sign in, such as `{audience: https://tocsin.example.com}` for Auth0."""

    @property
    def has_provider(self) -> bool:
        return self.verify_tokens and (self.iam_url is not None or self.jwks_url is not None)

    @property
    def has_sign_in(self) -> bool:
        """People can sign in to the console through the identity provider."""
        return self.has_provider and self.client_id is not None

    @property
    def expected_issuer(self) -> str | None:
        return self.issuer or self.iam_url

    @model_validator(mode="after")
    def _names_an_issuer(self) -> Self:
        if self.jwks_url is not None and self.expected_issuer is None:
            raise ValueError("`jwks_url` needs an `issuer`: set the issuer that tokens must name")
        return self

    @model_validator(mode="after")
    def _can_sign_in(self) -> Self:
        if self.client_id is not None and self.iam_url is None:
            raise ValueError("`client_id` needs an `iam_url`: its OpenID configuration names where people sign in")
        if self.client_secret is not None and self.client_id is None:
            raise ValueError("`client_secret` needs the `client_id` to which it belongs")
        if "openid" not in self.scopes:
            raise ValueError("`scopes` must include `openid`: without it the provider sends no id token")
        return self


class Redis(Section):
    """State that several copies of the API share."""

    url: str | None = None
    """URL of a Redis server for rate limits; by default each copy counts on its own."""


class Metrics(Section):
    """The Prometheus metrics."""

    enabled: bool = True
    """Serve metrics."""
    host: str | None = None
    """Address on which `/metrics` and the probe `/livez` listen; absent: that of `server.host`. Requests need no token."""
    port: Port = 9090
    """TCP port of `/metrics` and of the probe `/livez`; 0 takes a free port."""
    prefix: Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")] = "hanzo_scheduler"
    """Prefix of hip-62's metric names; the default is hip-62's, so that its alerts work. The other names begin with `tocsin_`."""
    max_jobs: int = Field(default=2_000, ge=1, le=1_000_000)
    """Jobs with series of their own, the oldest first. A job has about 30; 1,000 jobs take 0.3 seconds of processor time for each scrape. The
    totals of the installation count all jobs."""
    process_port: Port | None = None
    """TCP port of the metrics (`/metrics`) and the probes (`/livez`, `/readyz`) of each `tocsin run` and `tocsin worker`; absent: none, 0 takes a free port. It needs the extra `metrics`."""
    process_host: str = "127.0.0.1"
    """Address of `process_port`. Requests need no token: use a network that only Prometheus reaches."""


class GrpcTls(Section):
    """TLS of the gRPC service.

    All files hold PEM, and are read again when they change.
    """

    cert: Folder | None = None
    """File with the certificate of the service and those of its issuers; absent: no TLS."""
    key: Folder | None = None
    """File with the unencrypted private key of `cert`."""
    client_ca: Folder | None = None
    """File with the certificates of authorities. Callers must then present a certificate of these authorities, beside their token."""

    @property
    def is_on(self) -> bool:
        """A field is set, so that no connection without TLS is accepted."""
        return self != GrpcTls()


class Grpc(Section):
    """The gRPC service of `tocsin serve` and `tocsin dev`. It needs the extra `grpc`."""

    port: Port | None = None
    """TCP port of the service, on the address of `server.host`; absent: none, 0 takes a free port."""
    max_message_bytes: int = Field(default=4_194_304, ge=65_536, le=67_108_864)
    """Size of a message that the service receives or sends."""
    max_calls: int = Field(default=200, ge=1)
    """Calls that run at a time; further calls are refused with `RESOURCE_EXHAUSTED`."""
    max_streams_per_caller: int = Field(default=10, ge=1)
    """Calls of `WatchEvents` that an identity may have at a time."""
    max_connections: int = Field(default=200, ge=1)
    """Connections of all callers together; a new connection beyond it is closed at once. One without a call for 5 minutes is closed."""
    tls: GrpcTls = GrpcTls()


class QueueRate(Section):
    """The rate at which the tasks of a queue start: a token bucket."""

    limit: int = Field(ge=1, le=1_000_000)
    """Number of tasks that start in each `per`."""
    per: Annotated[Duration, Field(ge=0.001, le=31_536_000)] = 60.0
    """The time for `limit` tasks."""
    burst: int | None = Field(default=None, ge=1, le=1_000_000)
    """Number of tasks that may start at once after a pause; by default `limit`."""


class Queue(Section):
    """A queue of tasks."""

    transport: Literal["matched", "mq"] = "matched"
    """`matched`: the matcher assigns each task to a worker with its handler and a free slot; `mq`: executors outside take
    tasks from hip-62's MQ subjects."""
    concurrency: int | None = Field(default=None, ge=1, le=1_000_000)
    """Number of tasks of the queue that workers may have at a time; null: unlimited. Only of matched queues."""
    rate: QueueRate | None = None
    """The rate at which tasks of the queue start; null: unlimited. Only of matched queues."""

    @property
    def bucket(self) -> TokenBucket | None:
        """The bucket that counts the starts of its tasks; None: they are not limited."""
        return (
            None
            if self.rate is None
            else TokenBucket(self.rate.limit, self.rate.per, self.rate.burst or self.rate.limit)
        )

    @model_validator(mode="after")
    def _is_matched_if_limited(self) -> Self:
        for field in ("concurrency", "rate"):
            if getattr(self, field) is not None and self.transport != "matched":
                raise ValueError(f"`{field}` needs `transport: matched`, because only the matcher keeps limits")
        return self


class Agents(Section):
    """The agents of the workers."""

    require_grant: bool = False
    """Assign tasks only to agents whose name was granted the queue and the function (`tocsin agents allow`), and shards only to those
    whose name was granted the shard. Otherwise an agent of a name without a grant gets what it announces."""
    accounts: DistinctTokens = ()
    """Names of agents that get a NATS account of their own from `tocsin permissions`, with the user `worker-<name>`.

    Workers of other accounts cannot use these names. Other workers share an account and the user `worker`."""


class NamespaceUsers(Section):
    """The programs and executors outside of a namespace."""

    programs: DistinctTokens = ()
    """Names of `programs` that trigger and cancel jobs of this namespace alone. Their accounts import no other subjects."""
    announced: tuple[Name, ...] = ()
    """Jobs of the namespace whose public events these programs receive: the name of a job is one token there, which NATS cannot filter by
    namespace."""
    executors: bool = False
    """Whether the executors of its jobs in queues with `transport: mq` get an account of their own from `tocsin permissions`.

    The account `<ACCOUNT>_MQ_<NAMESPACE>` with the user `mq-executor-<namespace>` takes these tasks as the consumer
    `job-executors-<namespace>`, and answers for them. Other executors can do neither."""


class Stages(Section):
    """The stages of this process."""

    ack_wait: Duration = 30.0
    """Time after which a message of another program that is not acknowledged is delivered again, to any copy of the stage."""


class Worker(Section):
    """The workers of this process."""

    concurrency: int | None = Field(default=None, ge=1)
    """Number of tasks that a worker runs at the same time; by default the number in the worker's code."""
    shutdown_timeout: Duration = 30.0
    """Time that a stage gets at shutdown to finish its messages."""
    ack_wait: Duration = 30.0
    """Time after which a task that an MQ executor took and did not acknowledge is delivered to another."""
    lease: Duration = 300.0
    """Visibility lease of workers over HTTP that request none."""
    cancel_grace: Patience = 10.0
    """Time that a handler gets to end after its execution is cancelled; `0s`: none."""
    leader_candidate: bool = True
    """Whether the workers may become the executor leader, which alone gets the tasks of `LEADER_ONLY` jobs."""
    shards: DeclaredShards | None = None
    """Shards that the workers may own, `*` for every shard; by default those in the worker's code. Only the owner of a shard gets
    the tasks of executions on it, once a worker has declared it."""
