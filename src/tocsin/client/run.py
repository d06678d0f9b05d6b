"""One run of a job, as a program sees it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from itertools import chain, repeat
from typing import Any, Final, TypeAlias, TypeVar

from pydantic import JsonValue

from ..adapters.extras import ExtraNotInstalled
from ..domain.access import masked
from ..domain.events import FannedOut, Message, Recorded
from ..domain.execution_record import Status
from ..domain.fan_out import execution_ids
from ..ports import ExecutionRow, HistoryUnavailable, LogUnavailable, NotAllowed
from ..ports.queries import ExecutionQuery
from ..services.operations.errors import NotFound
from ..services.operations.execution_output import ExecutionOutput
from ..services.operations.execution_requests import Cancellation
from ..services.operations.lookup import ExecutionMatch, fanned_out
from ..services.operator import Operator
from .errors import InvalidArgument, RunTimeout
from .event_watch import EventWatch, is_end
from .outcome import Outcome, outcome_of, outcome_of_row

READS_AT_ONCE: Final = 16
"""Executions of a fan-out that are read concurrently."""
PAUSES_S: Final = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Pauses before an execution is read again, because its end is stored or it could not be read; the last is repeated."""
MIN_READ_S: Final = 1.0
"""Least time for the first look at a run, also if the caller's timeout is shorter."""
T = TypeVar("T")
Open: TypeAlias = Callable[[], tuple[Operator, EventWatch]]
"""Return the connection of the client, or raise its error."""


class Run:
    """One run of a job: an execution, or those on its shards.

    `Client.trigger` and `Client.run` return it.
    """

    def __init__(self, open_client: Open, job: str, execution_id: str, *, is_requested: bool = False) -> None:
        self._open = open_client
        self._is_requested = is_requested
        """The execution is requested, and may not have been planned yet."""
        self.job = job
        """The name of the job."""
        self.execution_id = execution_id
        """The id of the execution, a UUIDv7."""

    def __repr__(self) -> str:
        return f"Run(job={self.job!r}, execution_id={self.execution_id!r})"

    async def result(self, timeout: float | None = None) -> JsonValue:  # noqa: ASYNC109 - the error names the run
        """Wait for the end of the run, and return the result of its last step.

        If several steps are the last, the result is a mapping by step. If the run fanned out over shards, it is a mapping by shard.
        The wait ends by an event, survives lost connections, and also works for a run that ended long ago.

        Args:
            timeout: seconds to wait; None: no limit. With 0, the run is looked at once.

        Raises:
            RunFailed: the run failed; the error has `error` and `failed_step`.
            RunCancelled: the run was cancelled.
            RunSkipped: the run did not begin; the error has the `reason`.
            RunTimeout: the run has not ended in time. It continues. This is a `TimeoutError`.
            ResultExpired: the events of the run are gone.
            NotFound: no execution has this id.
            NotPermitted, NotAllowed: the token or the NATS user may not read executions.
            ClientClosed: the client was closed meanwhile.
        """
        outcomes = await self._wait(timeout)
        if outcomes.keys() == {None}:
            return outcomes[None].value()
        return {str(shard): outcome.value() for shard, outcome in outcomes.items()}

    async def results(self, timeout: float | None = None) -> dict[str, JsonValue]:  # noqa: ASYNC109 - likewise
        """Wait for the end of the run, and return the results by step.

        Only completed steps have a result. It raises no error if the run did not complete. If the run fanned out, each shard has a mapping of its own.

        Args:
            timeout: seconds to wait; None: no limit.

        Raises:
            RunTimeout, NotFound, NotPermitted, NotAllowed, ClientClosed: see `result`.
        """
        outcomes = await self._wait(timeout)
        if outcomes.keys() == {None}:
            return outcomes[None].results
        return {str(shard): outcome.results for shard, outcome in outcomes.items()}

    async def status(self) -> Status:
        """Return `pending`, `running`, `completed`, `failed`, `cancelled` or `skipped`.

        A run that fanned out has the status of its executions together.

        Raises:
            NotFound: no execution has this id.
            LogUnavailable: the log or the API does not answer.
        """
        operator, _ = self._open()
        found = await self._find(self.execution_id)
        if found is None:
            return "pending"
        if isinstance(found, Outcome):
            return found.status
        fan_out = await operator.fan_out(found)
        return outcome_of(found).status if fan_out is None else fan_out.status

    async def cancel(self, reason: str | None = None) -> Cancellation:
        """Cancel the run; a finished run stays as it is.

        The answer's `changed` says whether this call ended it. `reason` is recorded.

        Raises:
            NotFound: no execution has this id.
            OperationError: no stage plans it within some seconds (`not-planned`).
            NotPermitted, NotAllowed: the token or the NATS user may not cancel it.
        """
        operator, _ = self._open()
        return await operator.cancel(self.execution_id, reason=reason, job=self.job)

    async def output(self, after: int = 0) -> ExecutionOutput:
        """Return the lines that the handlers logged, and the progress of the steps.

        `after`: the sequence after which lines are returned. The log keeps the last 200 lines of each attempt, for a limited time.

        Raises:
            NotFound: no execution has this id.
            LogUnavailable: the log or the API does not answer.
        """
        operator, _ = self._open()
        return await operator.output(await operator.execution(self.execution_id), after=after)

    async def events(self) -> AsyncGenerator[Recorded[Message], None]:
        """Yield the stored events of the run, from its first event until its end.

        Values that only workers may see are masked. The wait survives lost connections.

        Raises:
            NotFound: no execution has this id.
            NotPermitted, NotAllowed: the token or the NATS user may not read it.
        """
        _, watch = self._open()
        last = 0
        with watch.watching(self.job, self.execution_id) as watcher:
            while True:
                facts, must_read = await watcher.take()
                if must_read:
                    try:
                        found = await self._find(self.execution_id)
                    except NotAllowed:
                        raise
                    except LogUnavailable:
                        await asyncio.sleep(PAUSES_S[-1])
                        watcher.miss()
                        continue
                    if isinstance(found, Outcome):
                        return  # the history alone knows the run: its events are gone
                    facts = found.events if found is not None else ()
                for fact in facts:
                    if fact.sequence <= last:
                        continue
                    last = fact.sequence
                    yield Recorded(masked(fact.message), fact.subject, fact.sequence, fact.time)
                    if is_end(fact.message):
                        return

    async def _wait(self, timeout: float | None) -> dict[str | None, Outcome]:  # noqa: ASYNC109 - see `result`
        """Return the outcome of the run by shard; None: the job is not divided."""
        if timeout is not None and not timeout >= 0:
            raise InvalidArgument("timeout", timeout, "must be a number of seconds from 0 on, or None")
        looks = _Looks()
        begin = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(None if timeout is None else max(timeout, MIN_READ_S)):
                end = await self._look(self.execution_id, looks)
            async with asyncio.timeout_at(None if timeout is None else begin + timeout):
                end = end or await self._end(self.execution_id, looks)
                if isinstance(end, Outcome):
                    return {None: end}
                shards = execution_ids(end)
                ends = await _all(self._end(name, looks) for name in shards.values())
        except TimeoutError:
            raise RunTimeout(self.execution_id, timeout or 0, looks.error) from None
        return {shard: end for shard, end in zip(shards, ends, strict=True) if isinstance(end, Outcome)}

    async def _end(self, execution_id: str, looks: "_Looks") -> Outcome | FannedOut:
        """Wait until an execution has ended, and return how."""
        _, watch = self._open()
        pauses = chain(PAUSES_S, repeat(PAUSES_S[-1]))
        with watch.watching(self.job, execution_id) as watcher:
            while True:
                _ = await watcher.take()
                end = await self._look(execution_id, looks)
                if end is not None:
                    return end
                if watcher.has_end or looks.error is not None:  # the event comes no more, but the end is not read yet
                    await asyncio.sleep(next(pauses))
                    watcher.miss()

    async def _look(self, execution_id: str, looks: "_Looks") -> Outcome | FannedOut | None:
        """Return how an execution ended; None: it has not, or cannot be read now."""
        try:
            async with looks.limit:
                found = await self._find(execution_id)
        except NotAllowed:
            raise
        except LogUnavailable as error:
            looks.error = error
            return None
        looks.error = None
        if found is None:
            return None
        if isinstance(found, ExecutionMatch):
            if (fanned := fanned_out(found)) is not None:
                return fanned.message
            found = outcome_of(found)
        return found if found.is_over else None

    async def _find(self, execution_id: str) -> ExecutionMatch | Outcome | None:
        """Return an execution from log, archive or history; None: it is not planned yet."""
        operator, _ = self._open()
        try:
            match = await operator.execution(execution_id)
        except NotFound:
            if self._is_requested or execution_id != self.execution_id:
                return None
            row = await _row_of(operator, execution_id)
            if row is None:
                raise
            return outcome_of_row(row)
        self._is_requested = False
        return match


async def _all(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results; the first error cancels the rest."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


class _Looks:
    """The looks of one caller at executions."""

    def __init__(self) -> None:
        self.limit = asyncio.Semaphore(READS_AT_ONCE)
        self.error: Exception | None = None
        """The error of the last look, if it failed."""


async def _row_of(operator: Operator, execution_id: str) -> ExecutionRow | None:
    try:
        rows = (await operator.executions(ExecutionQuery(id_prefix=execution_id, limit=1))).rows
    except (HistoryUnavailable, ExtraNotInstalled):
        return None
    return next((row for row in rows if row.execution_id == execution_id), None)
