"""Skips by a daily quota (I3): the namespace of the job had such a quota.

Memory: the namespaces with a daily quota, and one skip of each other namespace.
"""

from collections.abc import Iterator, Mapping
from typing import cast

from ...domain.daily_use import has_daily_quota
from ...domain.events import Message, NamespacesDefined, Recorded, Skipped
from ...domain.namespaces import namespace_of
from . import check
from .check import Debt, Handler, Proof, Taken


class DailyQuotaSkips:
    """Judges whether skipped executions had a quota that could be used up."""

    def __init__(self, *, is_whole: bool) -> None:
        """`is_whole`: the log is read from its beginning."""
        self._is_whole = is_whole
        self._limited: set[str] = set()
        self._skipped: dict[str | None, Recorded[Skipped]] = {}

    def handlers(self) -> Mapping[type[Message], Handler]:
        return {NamespacesDefined: self._defined, Skipped: self._was_skipped}

    def debts(self) -> Iterator[Debt]:
        """See `Check`: the declaration is in another stream, and may be read later."""
        for namespace, recorded in self._skipped.items():
            if self._is_whole and namespace not in self._limited:
                skipped = recorded.message
                entity = check.execution(skipped.job, skipped.execution_id)
                reason = f"it was skipped by a daily quota, and namespace {namespace} never had one"
                yield Debt("I3", entity, reason, recorded.time, "clocks", (Proof.of(recorded),))

    def _defined(self, recorded: Recorded[Message]) -> Taken:
        declared = cast("NamespacesDefined", recorded.message).namespaces
        self._limited.update(namespace.name for namespace in declared if has_daily_quota(namespace))
        yield from ()

    def _was_skipped(self, recorded: Recorded[Message]) -> Taken:
        skipped = cast("Recorded[Skipped]", recorded)
        if skipped.message.reason == "namespace_quota":
            self._skipped.setdefault(namespace_of(skipped.message.job), skipped)
        yield from ()
