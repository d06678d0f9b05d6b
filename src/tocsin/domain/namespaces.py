"""Namespaces: the parts of an installation that belong to different teams.

A namespace is the first part of dotted names, once an administrator has declared it: the job `payments.nightly`, the queue
`payments.mail` and the channel `payments.ops` belong to the namespace `payments`. All other names belong to the default namespace, which has no name.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Final, NamedTuple, TypeAlias

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter

from .definition import DefinitionError, DefinitionProblem, JobDefinition
from .definition.errors import read_entries
from .definition.webhook_fields import WEBHOOK_PREFIX
from .errors import TocsinError
from .event_trigger import started_by
from .events import Namespace, NamespacesDefined

SEPARATOR: Final = "."
MAX_NAMESPACES: Final = 1_000
MAX_NAME: Final = 40
"""Characters of a name. It precedes names of pushed jobs, which have a limit too."""
MAX_TEXT: Final = 255
"""Characters of a description."""
MAX_QUOTA: Final = 10_000_000
"""The greatest number of jobs, tasks or executions in a quota."""
MAX_BYTES: Final = 10**15
"""The greatest number of bytes in a quota."""
RESERVED: Final = frozenset({"ojs"})
"""First parts of names that Tocsin gives: jobs of the Open Job Spec without a namespace are called `ojs.<type>`."""
QUOTAS: Final[Mapping[str, int]] = {
    "max_jobs": MAX_QUOTA,
    "max_running": MAX_QUOTA,
    "executions_per_day": MAX_QUOTA,
    "bytes_per_day": MAX_BYTES,
}
"""The fields of a namespace that are quotas, and the greatest value of each."""
PATTERN: Final = r"^[a-z0-9](?:[a-z0-9-]*[a-z0-9])?$"

Quota: TypeAlias = Annotated[int, Field(ge=1, le=MAX_QUOTA, strict=True)]
QuotaOfBytes: TypeAlias = Annotated[int, Field(ge=1, le=MAX_BYTES, strict=True)]
NamespaceName: TypeAlias = Annotated[str, StringConstraints(pattern=PATTERN, max_length=MAX_NAME)]


class WrongNamespaces(TocsinError):
    """Namespaces that cannot be declared."""

    code = "wrong-namespaces"


def namespace_of(name: str) -> str | None:
    """Return the first part of a dotted name; None: the name has no dot."""
    first, dot, _ = name.partition(SEPARATOR)
    return first if dot else None


def is_within(name: str, namespaces: Collection[str]) -> bool:
    return namespace_of(name) in namespaces


def declared_of(name: str, declared: Collection[str]) -> str | None:
    """Return the declared namespace of a name; None: the default namespace."""
    namespace = namespace_of(name)
    return namespace if namespace in declared else None


class NamespaceEntry(Namespace, extra="forbid"):
    """A namespace as a file or a request names it."""

    max_jobs: Quota | None = None
    max_running: Quota | None = None
    executions_per_day: Quota | None = None
    bytes_per_day: QuotaOfBytes | None = None

    @property
    def namespace(self) -> Namespace:
        return Namespace(**dict(self))


_ENTRIES: Final = TypeAdapter(tuple[NamespaceEntry, ...], config=ConfigDict(defer_build=True))


def read(document: object) -> tuple[Namespace, ...]:
    """Return the namespaces in a document: a mapping with `namespaces`.

    Each is a mapping, or a name alone.

    Raises:
        WrongNamespaces: it is another document, or a field of a namespace is wrong.
    """
    found = read_entries(document, "namespaces", "name", _ENTRIES, WrongNamespaces)
    return tuple(entry.namespace for entry in found)


def checked(namespaces: Iterable[Namespace]) -> tuple[Namespace, ...]:
    """Return namespaces sorted by name; raise WrongNamespaces if one is not valid."""
    wanted = tuple(sorted(namespaces, key=lambda namespace: namespace.name))
    if len(wanted) > MAX_NAMESPACES:
        raise WrongNamespaces(f"namespaces: {len(wanted):,}, more than {MAX_NAMESPACES:,}")
    seen: set[str] = set()
    for namespace in wanted:
        name = namespace.name
        if len(name) > MAX_NAME or not re.fullmatch(PATTERN, name):
            raise WrongNamespaces(
                f"namespace {name[:MAX_TEXT]!r}: must be 1 to {MAX_NAME} lower-case letters, digits and hyphens, and begin and end with "
                "a letter or a digit"
            )
        if name in RESERVED:
            raise WrongNamespaces(f"namespace {name!r} is reserved for jobs of the Open Job Spec: choose another name")
        if name in seen:
            raise WrongNamespaces(f"namespace {name!r} is given twice: give it once")
        seen.add(name)
        if len(namespace.description) > MAX_TEXT or not namespace.description.isprintable():
            raise WrongNamespaces(f"namespace {name}: a description has at most {MAX_TEXT} printable characters")
        for quota, greatest in QUOTAS.items():
            most = getattr(namespace, quota)
            if most is not None and not 1 <= most <= greatest:
                raise WrongNamespaces(f"namespace {name}: {quota} is {most:,}, and must be from 1 to {greatest:,}")
    return wanted


def draft(namespaces: Iterable[Namespace]) -> NamespacesDefined:
    """Return the event of a declaration; see `checked`."""
    return NamespacesDefined(namespaces=checked(namespaces))


class Reference(NamedTuple):
    """A name or a path in a definition of a job."""

    field: str
    what: str
    """`queue`, `job`, `channel`, or `path` of a webhook."""
    name: str
    step: str | None = None

    @property
    def namespace(self) -> str | None:
        """The first part of the name, or folder of the path; it may be undeclared."""
        if self.what != "path":
            return namespace_of(self.name)
        folder, slash, _ = self.name.removeprefix(WEBHOOK_PREFIX).partition("/")
        return folder if slash else None


def references(definition: JobDefinition) -> Iterator[Reference]:
    """Yield the queues, jobs, channels and paths of webhooks to which a definition refers."""
    is_own = not definition.dag or any(step.queue is None for step in definition.dag)
    if is_own:
        yield Reference("queue", "queue", definition.queue)
    for step in definition.dag:
        if step.queue is not None:
            yield Reference("queue", "queue", step.queue, step.name)
    for field, job in referenced_jobs(definition):
        yield Reference(field, "job", job)
    for number, trigger in enumerate(definition.triggers):
        if trigger.webhook is not None:
            yield Reference(f"triggers[{number}].webhook", "path", trigger.webhook)
    for number, channel in enumerate(definition.channels):
        yield Reference(f"notify.channels[{number}]", "channel", channel)


def referenced_jobs(definition: JobDefinition) -> Iterator[tuple[str, str]]:
    """Yield the jobs that a job depends on or follows, each after its field."""
    for dependency in definition.depends_on:
        yield "depends_on", dependency.job
    for job in started_by(definition):
        yield "triggers", job


def crossings(definition: JobDefinition, declared: Collection[str]) -> list[Reference]:
    own = declared_of(definition.name, declared)
    return [reference for reference in references(definition) if _declared(reference, declared) != own]


def _declared(reference: Reference, declared: Collection[str]) -> str | None:
    namespace = reference.namespace
    return namespace if namespace in declared else None


def check_references(definitions: Iterable[JobDefinition], declared: Collection[str]) -> None:
    """Raise DefinitionError for each queue, job, channel or path of another namespace."""
    if not declared:
        return
    found = [
        DefinitionProblem(
            _reason(definition, reference, declared),
            field=reference.field,
            value=reference.name,
            step=reference.step,
            job=f"job `{definition.name}`",
            code="crosses-namespace",
        )
        for definition in definitions
        for reference in crossings(definition, declared)
    ]
    if found:
        raise DefinitionError(*found)


_EXAMPLES: Final = {"queue": "default", "job": "nightly", "channel": "ops"}


def _reason(definition: JobDefinition, reference: Reference, declared: Collection[str]) -> str:
    own, other = declared_of(definition.name, declared), _declared(reference, declared)
    place = "the default namespace" if other is None else f"namespace `{other}`"
    if own is None:
        return (
            f"a {reference.what} of {place}, and the job is in the default namespace: name one of the default namespace"
        )
    example = f"{WEBHOOK_PREFIX}{own}/github" if reference.what == "path" else f"{own}.{_EXAMPLES[reference.what]}"
    return f"a {reference.what} of {place}, and the job is in namespace `{own}`: name one such as `{example}`"


def check_job_quotas(
    new: Collection[str], deleted: Iterable[str], registered: Mapping[str, int], limits: Mapping[str, int]
) -> None:
    """Refuse new jobs beyond the quota `max_jobs` of their namespaces (`limits`).

    `registered`: the number of registered jobs, by namespace of a new job, with deleted jobs.

    Raises:
        DefinitionError: with a problem for each such namespace.
    """
    wanted = Counter(filter(None, (declared_of(name, limits) for name in new)))
    known = Counter(registered)
    known.subtract(Counter(filter(None, (declared_of(name, limits) for name in deleted))))
    found = [
        DefinitionProblem(
            f"namespace `{namespace}` may have {limits[namespace]:,} jobs (max_jobs); it has {known[namespace]:,}, and would get {number:,} "
            "more: delete jobs, or let an administrator raise the quota",
            field="name",
            job=f"job `{min(name for name in new if namespace_of(name) == namespace)}`",
            code="too-many-jobs",
        )
        for namespace, number in sorted(wanted.items())
        if known[namespace] + number > limits[namespace]
    ]
    if found:
        raise DefinitionError(*found)
