"""The bytes of later events of a namespace's executions, for its quota `bytes_per_day` (ADR 97).

The recorder reads every event of executions and dead letters in order. It adds their sizes to an entry of the bucket `queues`, before it
records them. The entry holds the sequence up to which it counts, so events that are read again, also for a new history, count once.
"""

from collections import defaultdict
from collections.abc import Sequence

from ... import subjects, telemetry
from ...domain import daily_use
from ...domain.events import Message, NamespacesDefined, Recorded, newest_of
from ...domain.namespaces import namespace_of
from ...ports import EventLog, NotAllowed, Projections
from ...subjects import Bucket

_log = telemetry.get_logger("tocsin.recorder")


class LaterBytesCounter:
    """Counts the later events of namespaces that have the quota."""

    def __init__(self, log: EventLog, projections: Projections) -> None:
        self._log = log
        self._projections = projections

    async def count(self, messages: Sequence[Recorded[Message]]) -> None:
        """Count events of the log, oldest first.

        Raises:
            SequenceConflict: another recorder counted at the same time.
            LogUnavailable: the bucket or the log did not answer.
        """
        events = defaultdict[str, list[Recorded[Message]]](list)
        jobs = {getattr(recorded.message, "job", None) for recorded in messages}  # few, and most have no namespace
        namespaces = {job: namespace for job in jobs if isinstance(job, str) and (namespace := namespace_of(job))}
        for recorded in messages if namespaces else ():
            if (namespace := namespaces.get(getattr(recorded.message, "job", ""))) and daily_use.counts_later(
                recorded.message
            ):
                events[namespace].append(recorded)
        if not events:
            return
        for namespace in await self._limited() & events.keys():
            try:
                await self._add(namespace, events[namespace])
            except NotAllowed as error:  # rights of an older version, also to read; the history must go on
                _log.warning(
                    "later bytes not counted", action="later-bytes-not-counted", namespace=namespace, exc_info=error
                )

    async def _add(self, namespace: str, events: Sequence[Recorded[Message]]) -> None:
        key = subjects.later_bytes_key(namespace)
        entry = await self._projections.get(Bucket.QUEUES, key)
        value = daily_use.with_later(entry and entry[0], events)
        if value is not None:
            expect = entry[1] if entry else 0
            await self._projections.put(Bucket.QUEUES, key, value, expect=expect, ttl=daily_use.LIFETIME_S)

    async def _limited(self) -> set[str]:
        newest = newest_of(await self._log.load(subjects.namespaces()), NamespacesDefined)
        declared = () if newest is None else newest.message.namespaces
        return {namespace.name for namespace in declared if namespace.bytes_per_day is not None}
