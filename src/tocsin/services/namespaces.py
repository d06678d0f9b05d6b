"""Namespaces, as administrators declare them and everybody else reads them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from pydantic import BaseModel
from typing_extensions import override

from .. import subjects
from ..domain import daily_use, namespaces
from ..domain.daily_use import DailyUse
from ..domain.definition import JobDefinition
from ..domain.documented_model import DocumentedModel
from ..domain.events import Namespace, NamespacesDefined, Recorded
from ..domain.namespaces import crossings, declared_of, namespace_of
from ..ports import Clock, Projections
from ..subjects import Bucket
from .documents import Document
from .operations.errors import NotFound

MAX_LISTED: Final = 20
"""Queues and jobs that a planned change names."""


@dataclass(frozen=True, slots=True)
class NamespaceMap:
    """The newest declarations and their version.

    The version is the sequence of their event; 0: none were made.
    """

    version: int
    namespaces: tuple[Namespace, ...]

    def get(self, name: str) -> Namespace | None:
        return next((namespace for namespace in self.namespaces if namespace.name == name), None)

    def named(self, name: str) -> Namespace:
        """Return a declared namespace.

        Raises:
            NotFound: it is not declared.
        """
        if (namespace := self.get(name)) is None:
            raise NotFound(f"namespace {name!r} is not declared: list the namespaces to see those that are")
        return namespace

    @property
    def names(self) -> frozenset[str]:
        return frozenset(namespace.name for namespace in self.namespaces)


class NamespaceDetails(Namespace):
    """A namespace, what it holds, and what it used today."""

    jobs: int
    """The number of its registered jobs."""
    queues: tuple[str, ...]
    """Queues in it that these jobs name."""
    executions_today: int
    """The executions that count for the quotas of today (UTC); 0 without such a quota."""
    bytes_today: int
    """The bytes of their events that were stored today; 0 without the quota `bytes_per_day`."""
    changed_bytes_today: int = 0
    """The bytes of decisions on its jobs, queues, agents and silences that were stored today; 0 without the quota `bytes_per_day`."""


class QuotaChange(BaseModel, frozen=True, defer_build=True):
    """A quota that two declarations have differently; None: any number."""

    quota: str
    before: int | None
    after: int | None


class NamespaceChange(DocumentedModel, frozen=True, defer_build=True):
    """A namespace that two declarations have differently, and what it holds."""

    name: str
    action: Literal["declare", "change", "remove"]
    jobs: int = 0
    """The number of registered jobs whose names begin with it."""
    queues: tuple[str, ...] = ()
    """Queues of registered jobs whose names begin with it, at most 20."""
    quotas: tuple[QuotaChange, ...] = ()
    """The quotas that change."""
    crossing: tuple[str, ...] = ()
    """Registered jobs that would refer to a queue or a job of another namespace, at most 20. They run on, and are refused when they are
    registered again."""


class Namespaces(Document[NamespacesDefined, NamespaceMap]):
    """The namespaces of an installation."""

    kind, scope, draft = NamespacesDefined, subjects.namespaces(), staticmethod(namespaces.draft)

    @override
    def view(self, newest: Recorded[NamespacesDefined] | None) -> NamespaceMap:
        return NamespaceMap(0, ()) if newest is None else NamespaceMap(newest.sequence, newest.message.namespaces)


def changes(
    before: Iterable[Namespace], after: Iterable[Namespace], definitions: Collection[JobDefinition]
) -> tuple[NamespaceChange, ...]:
    """Return the namespaces that two declarations have differently, sorted by name.

    `definitions` are the registered jobs.
    """
    olds, news = ({namespace.name: namespace for namespace in each} for each in (before, after))
    changed = [name for name in sorted(olds.keys() | news.keys()) if olds.get(name) != news.get(name)]
    if not changed:
        return ()
    crossing = [definition for definition in definitions if crossings(definition, news.keys())]
    return tuple(_change(name, olds, news, definitions, crossing) for name in changed)


def _change(
    name: str,
    olds: Mapping[str, Namespace],
    news: Mapping[str, Namespace],
    definitions: Iterable[JobDefinition],
    crossing: Iterable[JobDefinition],
) -> NamespaceChange:
    jobs, queues = contents(name, definitions)
    concerned = [
        definition.name
        for definition in crossing
        if name in _namespaces(definition) and (name in news) != (name in olds)
    ]
    return NamespaceChange(
        name=name,
        action="remove" if name not in news else "declare" if name not in olds else "change",
        jobs=jobs,
        queues=queues[:MAX_LISTED],
        quotas=tuple(
            QuotaChange(quota=quota, before=before, after=after)
            for quota in namespaces.QUOTAS
            if (before := getattr(olds.get(name), quota, None)) != (after := getattr(news.get(name), quota, None))
        ),
        crossing=tuple(sorted(concerned)[:MAX_LISTED]),
    )


async def details(
    namespace: Namespace, definitions: Iterable[JobDefinition], projections: Projections, clock: Clock
) -> NamespaceDetails:
    """Return a namespace with its content; `definitions` are the jobs that count."""
    jobs, queues = contents(namespace.name, definitions)
    now = clock.now()
    use = await use_of(projections, namespace.name, now)
    changed = await projections.get(Bucket.QUEUES, subjects.changed_bytes_key(namespace.name))
    return NamespaceDetails(
        **dict(namespace),
        jobs=jobs,
        queues=queues,
        executions_today=use.executions,
        bytes_today=use.bytes,
        changed_bytes_today=daily_use.read(changed and changed[0], now).bytes,
    )


async def use_of(projections: Projections, namespace: str, now: datetime) -> DailyUse:
    """Return the use of a namespace today, as the planner's process showed it last."""
    return (await uses_of(projections, (namespace,), now))[namespace]


async def uses_of(projections: Projections, names: Sequence[str], now: datetime) -> dict[str, DailyUse]:
    """Return what namespaces have used today (see `use_of`)."""
    entries = await projections.get_each(Bucket.QUEUES, list(map(subjects.daily_use_key, names)))
    return {name: daily_use.read(entry and entry[0], now) for name, entry in zip(names, entries, strict=True)}


def contents(name: str, definitions: Iterable[JobDefinition]) -> tuple[int, tuple[str, ...]]:
    """Return the number of jobs of a namespace, and the queues of jobs in it."""
    jobs, queues = 0, set[str]()
    for definition in definitions:
        jobs += declared_of(definition.name, {name}) is not None
        queues.update(definition.step_queues())
    return jobs, tuple(sorted(queue for queue in queues if declared_of(queue, {name})))


def _namespaces(definition: JobDefinition) -> set[str | None]:
    """Return the first parts of the names in a definition, declared or not."""
    return {namespace_of(definition.name), *(each.namespace for each in namespaces.references(definition))}
