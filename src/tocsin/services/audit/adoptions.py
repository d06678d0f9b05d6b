"""Adopted steps (I6): each has the result that the failed execution recorded.

Memory: a digest for each completed step of executions that are open, or failed and have a dead letter.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from hashlib import blake2b

from pydantic import JsonValue

from ...domain.events import Admitted, Advanced, Cancelled, Completed, Failed, Message, Recorded
from . import check
from .check import Debt, Handler, Key, Taken


class Adoptions:
    """Compares each adopted result with the recorded result."""

    def __init__(self, since: datetime | None) -> None:
        """Do not judge results of executions that may have started before `since` (UTC)."""
        self._since = since
        self._results: dict[Key, dict[str, bytes]] = {}
        """The digests of results by execution and step."""

    def handlers(self) -> Mapping[type[Message], Handler]:
        return {
            Admitted: self._admitted,
            Advanced: self._advanced,
            Failed: self._failed,
            **dict.fromkeys((Completed, Cancelled), self._over),
        }

    def debts(self) -> Iterator[Debt]:
        yield from ()

    def _admitted(self, recorded: Recorded[Admitted]) -> Taken:
        if len(recorded.message.plan.steps) > 1:
            self._results.setdefault(check.key_of(recorded.message), {})
        yield from ()

    def _advanced(self, recorded: Recorded[Advanced]) -> Taken:
        fact = recorded.message
        if fact.adopted_from is not None:
            earlier = self._results.get((fact.job, fact.adopted_from))
            is_known = earlier is not None or self._since is None  # otherwise it may have ended before
            if is_known and (earlier or {}).get(fact.step) != _digest(fact.result):
                reason = f"execution {fact.adopted_from} did not complete {fact.step} with the adopted result"
                yield check.violation("I6", check.execution(fact.job, fact.execution_id), reason, recorded)
        if (results := self._results.get(check.key_of(fact))) is not None:
            results[fact.step] = _digest(fact.result)

    def _failed(self, recorded: Recorded[Failed]) -> Taken:
        fact = recorded.message
        results = self._results.get(check.key_of(fact))
        if results is not None and fact.step_completed and fact.step is not None:
            results[fact.step] = _digest(fact.result)
        if not fact.dead_letter:
            self._results.pop(check.key_of(fact), None)
        yield from ()

    def _over(self, recorded: Recorded[Completed] | Recorded[Cancelled]) -> Taken:
        self._results.pop(check.key_of(recorded.message), None)
        yield from ()


def _digest(result: JsonValue) -> bytes:
    return blake2b(json.dumps(result, sort_keys=True).encode(), digest_size=16).digest()
