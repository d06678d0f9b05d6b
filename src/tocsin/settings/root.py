"""The settings of an installation: names, places, and all sections."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from typing_extensions import override

from ..domain import ids
from ..domain.documented_model import DocumentedModel
from ..domain.namespaces import NamespaceName, namespace_of
from ..subjects import DEFAULT_QUEUE, captured_stream
from .builtin import Builtin
from .channels import Notifications
from .fields import DistinctTokens, Folder, Prefix, Token
from .model import (
    Agents,
    Auth,
    Backup,
    Database,
    Execution,
    Grpc,
    Heartbeat,
    Leader,
    Metrics,
    NamespaceUsers,
    Nats,
    Notary,
    Output,
    Queue,
    Recovery,
    Redis,
    Screener,
    Server,
    Stages,
    Worker,
)
from .s3 import Archive
from .triggers import Triggers

DATA_DIR: Final = Path("~/.local/share/tocsin")
FieldPath: TypeAlias = tuple[str, ...]
"""Path of a field, e.g. `("leader", "ttl")`."""

_PREFIXES: Final = ("public_prefix", "trigger_prefix", "mq_prefix")
_TAKEN: Final = frozenset({"public", ids.OWN_REQUESTS})
"""Names under which other requests are recorded."""


def _default_folder() -> Path:
    try:
        return DATA_DIR.expanduser()
    except RuntimeError:  # in a container, a user may have no entry in /etc/passwd
        return Path("/var/lib/tocsin")


class Settings(DocumentedModel, BaseSettings):
    """All settings. Immutable; made by `load`, or from arguments and defaults alone."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix="TOCSIN_", env_nested_delimiter="__")

    root: Token = "tocsin"
    """First token of every subject, and prefix of every stream and bucket."""
    public_prefix: Prefix = "cron"
    """Subject prefix of public events."""
    trigger_prefix: Prefix = "cron.trigger"
    """Subject prefix of triggers that clients publish."""
    mq_prefix: Prefix = "mq"
    """Subject prefix of tasks for executors outside."""
    replicas: int | None = Field(default=None, ge=1, le=5)
    """Number of servers that keep each stream; by default 1 for a new stream, and unchanged for an existing stream."""
    data_dir: Folder = _default_folder()
    """Folder for the history and for the data of `tocsin dev`."""
    jobs_file: Path | None = None
    """File or folder with job definitions that `tocsin jobs apply` reads by default.

    `tocsin run` applies it when it starts the registrar: it creates and updates jobs, and deletes none."""
    server: Server = Server()
    database: Database = Database()
    nats: Nats = Nats()
    leader: Leader = Leader()
    heartbeat: Heartbeat = Heartbeat()
    execution: Execution = Execution()
    recovery: Recovery = Recovery()
    archive: Archive = Archive()
    backup: Backup = Backup()
    screener: Screener = Screener()
    notary: Notary = Notary()
    output: Output = Output()
    auth: Auth = Auth()
    metrics: Metrics = Metrics()
    grpc: Grpc = Grpc()
    redis: Redis = Redis()
    agents: Agents = Agents()
    stages: Stages = Stages()
    worker: Worker = Worker()
    builtin: Builtin = Builtin()
    notifications: Notifications = Notifications()
    programs: DistinctTokens = ()
    """Programs outside, by name, that get a NATS account of their own from `tocsin permissions`.

    What a program requests is recorded under this name. Other programs share the account and the name `public`."""
    triggers: Triggers = Triggers()
    namespaces: dict[NamespaceName, NamespaceUsers] = {}
    """Programs outside by namespace, for `tocsin permissions`. `tocsin namespaces apply` declares namespaces."""
    queues: dict[str, Queue] = {}
    """Queues by name, beside the queue `default`."""

    _origins: dict[FieldPath, str] = PrivateAttr(default_factory=dict)

    @property
    def outsiders(self) -> tuple[str, ...]:
        """The NATS users outside whose messages streams store."""
        agents = (f"worker-{name}" for name in self.agents.accounts)
        programs = (f"public-{name}" for name in self.programs)
        executors = ("mq-executor", *(f"mq-executor-{team}" for team in self.mq_teams)) if self.bridged_queues else ()
        return "worker", *agents, "public", *programs, *executors

    def announced_to(self, program: str) -> dict[str, tuple[str, ...]] | None:
        """Return a program's namespaces, with the jobs that the program hears; None: no namespace."""
        bound = {name: users.announced for name, users in self.namespaces.items() if program in users.programs}
        return bound or None

    @property
    def opened_streams(self) -> Mapping[str, tuple[str, ...]]:
        """The subjects that `triggers` of jobs may name, by stream, also of captured messages."""
        captured = {captured_stream(self.root): self.triggers.subjects} if self.triggers.subjects else {}
        return {**self.triggers.streams, **captured}

    @property
    def bridged_queues(self) -> tuple[str, ...]:
        """The queues whose tasks go to executors outside (`transport: mq`)."""
        return tuple(name for name, queue in self.queues.items() if queue.transport == "mq")

    @property
    def mq_teams(self) -> tuple[str, ...]:
        """The namespaces with executors that have an account of their own."""
        return tuple(name for name, users in self.namespaces.items() if users.executors)

    @property
    def matched_queues(self) -> tuple[str, ...]:
        """The queues of the settings, and `default`, without those of the bridge.

        The matcher also assigns the tasks of queues that only jobs name.
        """
        return tuple(sorted({DEFAULT_QUEUE, *self.queues} - {*self.bridged_queues}))

    @property
    def linked_pages(self) -> str | None:
        """The URL of the pages to which notifications link; None: they have no links."""
        has_console = self.server.public_url is not None and self.server.console
        return self.notifications.public_url or (f"{self.server.public_url}/console" if has_console else None)

    def is_matched(self, queue: str) -> bool:
        """Return whether the matcher assigns the tasks of a queue."""
        return queue not in self.bridged_queues

    @field_validator("programs")
    @classmethod
    def _are_free(cls, programs: tuple[str, ...]) -> tuple[str, ...]:
        for name in programs:
            if name in _TAKEN:
                raise ValueError(f"`{name}` is the name of another publisher; use another name")
        return programs

    @model_validator(mode="after")
    def _binds_known_programs(self) -> Self:
        for namespace, users in self.namespaces.items():
            for program in users.programs:
                if program not in self.programs:
                    raise ValueError(
                        f"`namespaces.{namespace}.programs` names `{program}`, which is not one of `programs`: add it there"
                    )
            if users.executors and not self.bridged_queues:
                raise ValueError(
                    f"`namespaces.{namespace}.executors` needs a queue whose tasks they take: set `transport: mq` for one in `queues`"
                )
            for job in users.announced:
                if namespace_of(job) != namespace:
                    raise ValueError(
                        f"`namespaces.{namespace}.announced` names the job `{job}`, which is not in the namespace: name jobs such "
                        f"as `{namespace}.nightly`"
                    )
        return self

    @field_validator("public_prefix", "trigger_prefix", "mq_prefix")
    @classmethod
    def _is_outside_the_root(cls, prefix: str, info: ValidationInfo) -> str:
        if prefix.partition(".")[0] == info.data.get("root"):
            raise ValueError(
                "must begin with another token than `root`: the streams of Tocsin hold the subjects of the root"
            )
        return prefix

    @field_validator("triggers")
    @classmethod
    def _are_of_others(cls, triggers: Triggers, info: ValidationInfo) -> Triggers:
        # Below the last is all that a reader of the stream receives. `nats` is absent if it was refused itself.
        given = {**info.data, "inbox_prefix": getattr(info.data.get("nats"), "inbox_prefix", None)}
        own = {str(given.get(name)).partition(".")[0] for name in ("root", *_PREFIXES, "inbox_prefix")}
        programs = {"public", *info.data.get("programs", ())}
        if unknown := triggers.senders.keys() - programs:
            raise ValueError(f"`senders.{min(unknown)}` is no program outside: add it to `programs`")
        root = str(info.data.get("root"))
        names = (f"{root.upper().replace('-', '_')}_", f"KV_{root}_", f"OBJ_{root}_")
        opened = {f"streams.{stream}": subjects for stream, subjects in triggers.streams.items()}
        for stream in triggers.streams:
            if stream.startswith(names):
                raise ValueError(f"`streams.{stream}` is a stream of Tocsin: name a stream of another program")
        for field, subjects in {**opened, "subjects": triggers.subjects}.items():
            for subject in subjects:
                if subject.partition(".")[0] in own:
                    raise ValueError(
                        f"`{field}` opens `{subject}`, a subject of Tocsin: name subjects of other programs"
                    )
        for field, buckets in (("kv", [*triggers.kv]), ("objects", [*triggers.objects])):
            for bucket in buckets:
                if bucket.startswith(f"{root}_"):
                    raise ValueError(
                        f"`{field}` opens `{bucket}`, a bucket of Tocsin: name a bucket of another program"
                    )
        return triggers

    @field_validator("output")
    @classmethod
    def _is_kept_until_it_is_archived(cls, output: Output, info: ValidationInfo) -> Output:
        archive: Archive | None = info.data.get("archive")
        if archive is not None and archive.output and output.max_age <= archive.hot_window:
            raise ValueError(
                f"`max_age` is {output.max_age:g} s, but `archive.output` takes lines after `archive.hot_window`, "
                f"{archive.hot_window:g} s: give a longer `output.max_age`"
            )
        return output

    @model_validator(mode="before")
    @classmethod
    def _keep_history_with_the_data(cls, data: Any) -> Any:  # noqa: ANN401 - before validation
        database = data.get("database", {})
        if isinstance(database, Mapping) and not database.get("url"):
            written = data.get("data_dir")
            try:
                folder = Path(written).expanduser() if written else _default_folder()
            except RuntimeError:  # the field reports it
                return data
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
        """Read arguments only: `load` combines the sources and records the origins."""
        return (init_settings,)
