"""The fetches of workers over HTTP, and the claims that they received."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError

from ... import telemetry
from ...domain import task_fetch
from ...domain.task_fetch import Fetch, FetchedClaim

MAX_WAITING: Final = 2_000
"""The number of fetches that wait; more are refused."""
MAX_ARRIVED_BYTES: Final = 16 * 1_048_576
"""The size of the requests that wait to be read; more are lost, and their senders send them again."""
MAX_REMEMBERED: Final = 20_000
"""The number of fetches whose answers are remembered."""

_log = telemetry.get_logger("tocsin.matcher")


@dataclass(slots=True)
class WaitingFetch:
    """A fetch without an answer."""

    fetch: Fetch
    until: float
    """When it is answered in any case, in seconds of the monotonic clock."""
    is_current: bool = False
    """The board has everything that was stored before the fetch arrived."""
    log_end: int | None = None
    """The end of the log after the fetch arrived; None: not known."""
    is_reported: bool = False
    """Its gateway knows that it waits."""
    tries: int = 0
    """How often it was tried again at once."""


@dataclass(slots=True)
class Fetches:
    """All fetches that wait, oldest first, and the newest that were answered."""

    monotonic: Callable[[], float]
    _arrived: list[bytes] = field(default_factory=list)
    _arrived_bytes: int = 0
    _waiting: dict[str, WaitingFetch] = field(default_factory=dict)
    _answers: OrderedDict[str, dict[tuple[str, int], FetchedClaim]] = field(default_factory=OrderedDict)
    """The claims by scope and sequence of fetches that are answered, or have claims in the log."""

    def receive(self, body: bytes) -> None:
        """Take a request."""
        if len(body) <= task_fetch.MAX_BYTES and self._arrived_bytes < MAX_ARRIVED_BYTES:
            self._arrived.append(body)
            self._arrived_bytes += len(body)

    def forget(self) -> None:
        """Forget what arrived and what waits, because this matcher does not answer."""
        self._take()
        self._waiting.clear()

    def read(self, hear: Callable[[Fetch], None]) -> list[Fetch]:
        """Read the requests that arrived, and return the fetches for which there is no room.

        `hear` takes every fetch.
        """
        refused: list[Fetch] = []
        for body in self._take():
            try:
                fetch = Fetch.model_validate_json(body)
            except ValidationError as error:
                _log.warning("fetch not readable", action="fetch-refused", errors=error.error_count())
                continue
            hear(fetch)
            if not self._await(fetch):
                refused.append(fetch)
        return refused

    def learn(self, fetch_id: str, claim: FetchedClaim) -> None:
        """Note a claim that a fetch received."""
        claims = self._remember(fetch_id)
        if len(claims) < task_fetch.MAX_COUNT:
            claims[claim.scope, claim.sequence] = claim

    def answer_to(self, fetch: Fetch) -> tuple[FetchedClaim, ...] | None:
        """Return the claims that answer a fetch; None: it has no answer yet."""
        claims = self._answers.get(fetch.id)
        return None if claims is None else tuple(claims.values())

    def end(self, waiting: WaitingFetch) -> None:
        """Note that a fetch is answered."""
        self._waiting.pop(waiting.fetch.id, None)
        self._remember(waiting.fetch.id)

    def __iter__(self) -> Iterator[WaitingFetch]:
        """Iterate over a copy of what waits."""
        return iter(tuple(self._waiting.values()))

    def __len__(self) -> int:
        """Return the number of fetches that wait."""
        return len(self._waiting)

    def _await(self, fetch: Fetch) -> bool:
        """Let a fetch wait; return whether there is room."""
        known = self._waiting.get(fetch.id)
        if known is not None:  # the same fetch, with the time that is left
            known.fetch, known.until = fetch, min(known.until, self.monotonic() + fetch.wait)
            known.is_reported = False
            return True
        if len(self._waiting) >= MAX_WAITING:
            return False
        self._waiting[fetch.id] = WaitingFetch(fetch, self.monotonic() + fetch.wait)
        return True

    def _remember(self, fetch_id: str) -> dict[tuple[str, int], FetchedClaim]:
        claims = self._answers.setdefault(fetch_id, {})
        while len(self._answers) > MAX_REMEMBERED:
            self._answers.popitem(last=False)
        return claims

    def _take(self) -> list[bytes]:
        arrived, self._arrived, self._arrived_bytes = self._arrived, [], 0
        return arrived
