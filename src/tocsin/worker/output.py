"""Output of running attempts on its way to the log: lines, progress and heartbeats.

Handlers only fill buffers, from any thread. A loop empties them twice a second. So neither a slow nor an absent NATS can
delay a handler, and a flood of lines only drops lines.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any, Final

from pydantic import JsonValue

from .. import subjects, telemetry
from ..domain.events import Dispatched, HeartbeatDetails, OutputLine, OutputMessage, StepProgress
from ..domain.progress import message_of
from ..domain.text import printable
from ..ports import Clock, Publish, Publisher, RequestRefused
from ..subjects import OUTPUT_STREAMS, Stream
from .outcome import retry_delay
from .task_logger import Level, redacted

INTERVAL_S: Final = 0.5
"""The time between two emptyings of the buffers."""
LINES_PER_ATTEMPT: Final = OUTPUT_STREAMS[Stream.OUTPUT].messages
"""Lines that an attempt may have in its buffer. An execution keeps no more."""
LINES_PER_ROUND: Final = 500
"""Lines of all attempts in one emptying; the last attempt's lines may exceed it."""
ATTEMPTS_WAITING: Final = 1_000
"""Attempts that may have something in their buffers."""
SETTLE_TIMEOUT_S: Final = 1.0
"""The longest time that a failed attempt's heartbeat may delay its report."""
_MAX_TEXT: Final = 65_536
"""Characters of a logged text that are looked at, over all its lines."""
_MAX_LINE: Final = 1_200
_HEADERS_BYTES: Final = 80

_log = telemetry.get_logger("tocsin.worker")


class AttemptOutput:
    """The buffer of one attempt. Its methods work in any thread, and never wait."""

    __slots__ = (
        *("_dropped", "_heartbeat", "_is_closed", "_lines", "_lock"),
        *("_notice", "_owner", "_progress", "_redact_values", "_task", "has_sent_heartbeat", "redact"),
    )

    def __init__(
        self, owner: "Output", task: Dispatched, redact: Callable[[str], str], redact_values: Callable[[str], str]
    ) -> None:
        """Collect for `owner`. `redact_values` removes only whole secrets, from what the next attempt uses."""
        self._owner = owner
        self._task = task
        self.redact = redact
        """Removes the secrets of the task from a text."""
        self._redact_values = redact_values
        self._lock = threading.Lock()
        self._lines: deque[OutputLine] = deque()
        self._dropped = 0
        self._notice: tuple[OutputLine, int] | None = None
        """The last line about dropped lines, and their number."""
        self._progress: StepProgress | None = None
        self._heartbeat: HeartbeatDetails | None = None
        self._is_closed = False
        self.has_sent_heartbeat = False
        """The handler called `heartbeat`, and the next attempt may need it."""

    def line(self, level: Level, text: str) -> None:
        """Keep a logged text, which may have several lines."""
        lines = [self._line(level, printable(part)) for part in self.redact(text[:_MAX_TEXT]).splitlines()]
        with self._lock:
            if self._is_closed:
                return
            self._lines.extend(lines)
            while len(self._lines) > LINES_PER_ATTEMPT:
                self._lines.popleft()
                self._dropped += 1
        self._owner.fill(self)

    def drop(self, count: int) -> None:
        """Count lines that were never kept."""
        with self._lock:
            if self._is_closed or not count:
                return
            self._dropped += count
        self._owner.fill(self)

    def progress(self, fraction: float, message: str) -> None:
        """Replace the progress."""
        text = message_of(self.redact(str(message)[:_MAX_TEXT]))
        progress = StepProgress(**self._identity(), fraction=fraction, message=text)
        with self._lock:
            if self._is_closed:
                return
            self._progress = progress
        self._owner.fill(self)

    def heartbeat(self, details: JsonValue) -> None:
        """Replace the details for the next attempt."""
        heartbeat = HeartbeatDetails(**self._identity(), details=redacted(details, self._redact_values))
        with self._lock:
            if self._is_closed:
                return
            self._heartbeat = heartbeat
            self.has_sent_heartbeat = True
        self._owner.fill(self)

    def close(self) -> None:
        """Take nothing more: the attempt is over, although a thread of it may still run."""
        with self._lock:
            self._is_closed = True

    def take(self, *, lines: bool = True) -> list[OutputMessage]:
        """Empty the buffer and return its content: lines, oldest first, progress and heartbeat."""
        with self._lock:
            messages: list[OutputMessage] = []
            if lines and self._dropped:
                self._notice = self._line("warning", f"{self._dropped} lines dropped"), self._dropped
                messages.append(self._notice[0])
                self._dropped = 0
            if lines:
                messages += self._lines
                self._lines.clear()
            messages += [state for state in (self._progress, self._heartbeat) if state is not None]
            self._progress = self._heartbeat = None
            return messages

    def put_back(self, lost_messages: Sequence[OutputMessage]) -> bool:
        """Count lost lines, keep unreplaced state, and return whether another try makes sense."""
        with self._lock:
            if self._is_closed:
                return False
            for message in lost_messages:
                match message:
                    case StepProgress():
                        self._progress = self._progress or message
                    case HeartbeatDetails():
                        self._heartbeat = self._heartbeat or message
                    case _ if self._notice is not None and message is self._notice[0]:
                        self._dropped += self._notice[1]
                    case _:
                        self._dropped += 1
            return True

    def subject_of(self, message: OutputMessage) -> str:
        """Return the subject of a message of this attempt."""
        return subjects.output_of(message, self._task.token)

    def _identity(self) -> dict[str, Any]:
        task, time = self._task, self._owner.clock.now()
        return {
            "job": task.job,
            "execution_id": task.execution_id,
            "step": task.step,
            "attempt": task.attempt,
            "time": time,
        }

    def _line(self, level: Level, text: str) -> OutputLine:
        """Return a line that is cut so that the stream accepts it."""
        limit = OUTPUT_STREAMS[Stream.OUTPUT].size - _HEADERS_BYTES
        cut = text if len(text) <= _MAX_LINE else f"{text[:_MAX_LINE]}…"
        line = OutputLine(**self._identity(), level=level, text=cut)
        while cut and (excess := len(line.encode()) - limit) > 0:
            # JSON writes no byte of a printable text as more than two.
            shorter = cut.encode()[: -(excess // 2) - 6].decode("utf-8", "ignore")
            cut = f"{shorter}…"
            line = line.changed(text=cut)
        return line


class Output:
    """The output of all attempts of a worker."""

    def __init__(self, log: Publisher, clock: Clock) -> None:
        self.clock = clock
        self._log = log
        self._lock = threading.Lock()
        self._filled: dict[AttemptOutput, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._sending = asyncio.Lock()
        self._failures = 0

    def of(self, task: Dispatched, redact: Callable[[str], str], redact_values: Callable[[str], str]) -> AttemptOutput:
        """Return the buffer of an attempt that begins; the rest as for `AttemptOutput`."""
        self._loop = self._loop or asyncio.get_running_loop()
        return AttemptOutput(self, task, redact, redact_values)

    def fill(self, output: AttemptOutput) -> None:
        """Note that a buffer has something; from any thread."""
        with self._lock:
            if output in self._filled or len(self._filled) >= ATTEMPTS_WAITING:
                return
            self._filled[output] = None
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._wake.set)

    async def run(self) -> None:
        """Empty the buffers until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.run_once()
            await self.clock.sleep(max(INTERVAL_S, retry_delay(self._failures) if self._failures else 0.0))
            if self._filled:
                self._wake.set()

    async def run_once(self) -> None:
        """Send what the buffers have, the longest waiting first, and at most about `LINES_PER_ROUND` lines."""
        async with self._sending:
            batch: list[tuple[AttemptOutput, OutputMessage]] = []
            while self._filled and len(batch) < LINES_PER_ROUND:
                with self._lock:
                    output = next(iter(self._filled))
                    del self._filled[output]
                batch += [(output, message) for message in output.take()]
            await self._send(batch)

    async def drain(self) -> None:
        """Send everything, unless it cannot be sent."""
        while self._filled:
            await self.run_once()
            if self._failures:
                return

    async def settle(self, output: AttemptOutput) -> None:
        """Send the progress and the heartbeat of an attempt that failed.

        The next attempt may begin at once. Without a heartbeat there is nothing to wait for.
        """
        if not output.has_sent_heartbeat:
            return
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S), self._sending:
                await self._send([(output, message) for message in output.take(lines=False)])
        except TimeoutError:
            _log.warning("heartbeat not stored in time", action="heartbeat-late")

    async def _send(self, batch: Sequence[tuple[AttemptOutput, OutputMessage]]) -> None:
        if not batch:
            return
        writes = [Publish(output.subject_of(message), message, token_hex(8)) for output, message in batch]
        errors: list[Exception | None]
        try:
            errors = [result.error for result in await self._log.write(writes)]
        except Exception as error:  # noqa: BLE001 - output is best effort
            errors = [error] * len(batch)
        losses = [(*item, error) for item, error in zip(batch, errors, strict=True) if error is not None]
        self._failures = self._failures + 1 if losses else 0
        for output in {output: None for output, _, _ in losses}:
            lost_messages = [
                message for of, message, error in losses if of is output and not isinstance(error, RequestRefused)
            ]
            if output.put_back(lost_messages) and lost_messages:
                self.fill(output)
        if self._failures == 1:
            _log.warning("output lost", action="output-lost", count=len(losses), error=str(losses[0][2]))
