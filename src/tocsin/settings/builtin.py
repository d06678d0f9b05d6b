"""The settings of built-in functions, which a worker reads."""

import re
from ipaddress import ip_network
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field

from ..domain.definition.container_work import KubernetesName
from ..domain.definition.http_request import split_url, target_problem
from ..domain.definition.image import ImageError, read_pattern
from .fields import Duration, Section, Token, form, must


def _is_url_prefix(text: str) -> bool:
    url = split_url(text)
    return url is not None and "?" not in url.target and not target_problem(url.target)


def _network(text: str) -> str:
    try:
        ip_network(text)
    except ValueError as error:
        raise ValueError(f"must be a network such as 10.20.0.0/16: {error}") from None
    return text


def _image(text: str) -> str:
    try:
        read_pattern(text)
    except ImageError as error:
        raise ValueError(str(error)) from None
    return text


AbsolutePath: TypeAlias = Annotated[
    str, form(r"(?:/(?!\.{1,2}(?:/|$))[^/\0]+)+|/", "must be an absolute path without `.` and `..`")
]
UrlPrefix: TypeAlias = Annotated[str, must(_is_url_prefix, "must be http(s)://HOST[:PORT]/PATH, without a query")]
Network: TypeAlias = Annotated[str, AfterValidator(_network)]
DatabaseUrl: TypeAlias = Annotated[
    str,
    must(
        re.compile(r"(postgresql|postgres)://.|sqlite:////.").match,
        "must be postgresql://USER@HOST/DATABASE or sqlite:////PATH",
    ),
]
ProcedurePattern: TypeAlias = Annotated[
    str,
    form(r"[A-Za-z_][A-Za-z0-9_$]*(?:\.(?:[A-Za-z_][A-Za-z0-9_$]*|\*))?", "must be NAME, SCHEMA.NAME or SCHEMA.*"),
]
ImagePattern: TypeAlias = Annotated[str, AfterValidator(_image)]
VariablePattern: TypeAlias = Annotated[
    str, form(r"[A-Za-z_*][A-Za-z0-9_*]*", "must be the name of a variable; `*` stands for any characters")
]


class CommandRules(Section):
    """The rules of `tocsin worker --builtin command`. Nothing runs by default."""

    programs: tuple[AbsolutePath, ...] = ()
    """Programs that commands may run: `/PATH` of a program, or `/FOLDER/*` for each file directly in a folder.

    Symbolic links are followed before the comparison, on both sides. Only administrators should be able to write there."""
    interpreters: tuple[AbsolutePath, ...] = ()
    """Programs that may run a `script`, in the same form. Every author of jobs can then run any code as the worker's user."""
    directories: tuple[AbsolutePath, ...] = ()
    """Folders in which commands may run, with the folders inside them. The first is the default; without any it is `/`."""
    inherit: tuple[str, ...] = ("PATH", "LANG", "LC_ALL", "TZ")
    """Variables of the worker that commands inherit; they inherit no others."""
    variables: tuple[VariablePattern, ...] = ()
    """Variables that definitions may set; `REPORT_*` covers each with this beginning. Some, such as LD_PRELOAD, change what runs."""
    max_cpu: Duration | None = None
    """Greatest CPU time of each process of a command; null: unlimited."""
    max_memory: int | None = Field(default=None, ge=1_048_576)
    """Greatest address space of each process of a command, in bytes; null: unlimited."""
    max_file_size: int | None = Field(default=None, ge=1)
    """Greatest size of each file that a command writes, in bytes; null: unlimited."""
    max_processes: int | None = Field(default=None, ge=1)
    """Processes and threads of the worker's user beyond which a command starts no others; null: unlimited.

    The worker and its other commands count too. Root has no such limit, so a worker of root refuses this setting."""


class HttpRules(Section):
    """The rules of `tocsin worker --builtin http`. Nothing is sent by default.

    Addresses that are not public are refused unless `networks` has them.
    """

    urls: tuple[UrlPrefix, ...] = ()
    """The beginnings of URLs that requests may have: scheme, host, port and a path, such as `https://api.example.com/v1`.

    It covers this path, and each path that begins with it and a slash."""
    networks: tuple[Network, ...] = ()
    """Networks beside the public internet that requests may reach, such as `10.20.0.0/16`. The address that is connected to counts.

    `127.0.0.0/8` is this machine, and `169.254.0.0/16` has the credentials of machines in a cloud."""
    ca_file: AbsolutePath | None = None
    """A file with certificates of authorities, in PEM format, that are trusted beside public authorities."""


class SqlConnection(Section):
    """A database in which jobs run statements and procedures."""

    url: DatabaseUrl
    """`postgresql://USER@HOST/DATABASE` or `sqlite:////PATH`. The rights of its user are all that bounds a statement."""
    procedures: tuple[ProcedurePattern, ...] = ()
    """Procedures that jobs may call: `SCHEMA.NAME`, `SCHEMA.*` for each of a schema, or `NAME` on the database's search path. By default none.

    A job's name without a schema means `NAME` if that is listed, and otherwise the procedure in the schema of the first entry that covers it."""


class SqlRules(Section):
    """The rules of `tocsin worker --builtin sql` and `--builtin procedure`. Nothing runs by default."""

    connections: dict[Token, SqlConnection] = {}  # noqa: RUF012 - pydantic copies it
    """Databases, by the names that jobs give them. A statement of `--builtin sql` may do there what the user of the database may."""


class ContainerRules(Section):
    """The rules of `tocsin worker --builtin container`. Nothing runs by default.

    Workers of one queue need the same rules, because a worker continues the Jobs of another.
    """

    namespaces: tuple[KubernetesName, ...] = ()
    """Namespaces in which Jobs may run. The first is the default."""
    images: tuple[ImagePattern, ...] = ()
    """Images that may run: `HOST/` and `HOST/PATH/` cover each image below, `HOST/PATH` also this repository, and `HOST/PATH:TAG` or
    `HOST/PATH@sha256:DIGEST` one image.

    A short name such as `busybox` is `docker.io/library/busybox`."""
    service_accounts: tuple[KubernetesName, ...] = ()
    """Service accounts that a pod may have. By default pods have the namespace's own, and no token of it."""
    templates: dict[Token, AbsolutePath] = {}  # noqa: RUF012 - pydantic copies it
    """Pod templates, by the names that jobs give them: files with `metadata` and `spec` of a pod, read when the worker starts.

    A job that names none has the template `default`, if there is one."""
    kubeconfig: AbsolutePath | None = None
    """The file that names the API server; null: that of the cluster in which the worker runs."""
    context: str | None = None
    """The context of the kubeconfig; null: the current one."""
    start_within: Duration = 600.0
    """Time after which a container fails whose image cannot be pulled, or that cannot be created."""
    keep: Annotated[Duration, Field(ge=600)] = 3_600.0
    """Time for which Kubernetes keeps a finished Job, at least ten minutes. A worker that follows another reads its result there."""


class Builtin(Section):
    """Built-in functions of the workers of this process."""

    command: CommandRules = CommandRules()
    http: HttpRules = HttpRules()
    sql: SqlRules = SqlRules()
    container: ContainerRules = ContainerRules()
