"""Checks of the triggers of definitions against the other jobs and the settings."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import groupby

from ... import subjects
from ...domain.definition import DefinitionError, DefinitionProblem, EventTrigger, JobDefinition
from ...domain.event_trigger import started_by
from ...domain.ledger import Ledger
from .dependencies import HIDDEN, MaySee


async def check_trigger_circles(
    definitions: Mapping[str, JobDefinition],
    load: Callable[[Sequence[str]], Awaitable[Sequence[Ledger]]],
    may_see: MaySee,
) -> None:
    """Refuse definitions whose triggers would start each other in a circle.

    `load` and `may_see`: as for `check_dependencies`. The event listener starts nothing for a circle that two registrations at the same
    moment close.

    Raises:
        DefinitionError: there is a circle.
    """
    graph: dict[str, tuple[str, ...]] = {}
    found = {name: definition for name, definition in definitions.items() if definition.triggers}
    while found:
        graph |= {name: started_by(definition) for name, definition in found.items()}
        wanted = dict.fromkeys(job for name in found for job in graph[name] if job not in graph)
        outside = [job for job in wanted if job not in definitions]
        ledgers = dict(zip(outside, await load(outside), strict=True)) if outside else {}
        stored = {job: state.definition for job, state in ledgers.items()}
        found = {job: each for job in wanted if (each := definitions.get(job) or stored.get(job)) is not None}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        walk: list[str] = error.args[1]
        shown = [f"`{name}`" if name in definitions or await may_see(name) else HIDDEN for name in walk]
        path = " → ".join(name for name, _ in groupby(shown))
        name = next((name for name in walk if name in definitions), next(iter(definitions)))
        reason = f"jobs would start each other in a circle, and never stop: {path}"
        raise DefinitionError(
            DefinitionProblem(reason, job=f"job `{name}`", field="triggers", code="dependency-cycle")
        ) from None


def stream_of(trigger: EventTrigger, opened: Mapping[str, Sequence[str]]) -> str | None:
    """Return the stream of a trigger; None: not exactly one stream is open for it.

    `opened`: the subjects of each stream that the settings open.
    """
    streams = [
        stream
        for stream, filters in opened.items()
        if trigger.nats is not None
        and trigger.stream in {None, stream}
        and any(subjects.covers(each, trigger.nats) for each in filters)
    ]
    return streams[0] if len(streams) == 1 else None


def unopened_subjects(definitions: Iterable[JobDefinition], opened: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a warning for each job and subject that the settings do not open."""
    for definition in definitions:
        for trigger in definition.triggers:
            if trigger.nats is not None and stream_of(trigger, opened) is None:
                where = f"in the stream `{trigger.stream}`" if trigger.stream else "in exactly one stream"
                yield (
                    f"the settings do not open `{trigger.nats}` {where} (job {definition.name}); add it to "
                    "`triggers.streams`, or its events start nothing"
                )
