"""Reports of a worker in lists.

The results of its handlers in one turn of the event loop are one message.

Each report of a list is decided alone, with the proof of its own claim. A report that cannot be read is left out, and condemns no other.
A worker may store any message under any subject of reports, but it has only the proofs of the claims whose tasks it received (`ids.claim_proof`).
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from hmac import compare_digest
from typing import Final

import msgspec

from .. import subjects, telemetry
from ..domain import execution, ids
from ..domain.events import Failure, Message, Recorded, Report
from ..ports import Publish, Publisher, StoredMessage, Written
from ..subjects import DecodeError, ReportSubject
from .step import Send

MAX_REPORTS: Final = 64
"""Reports of one list."""
MAX_LIST_BYTES: Final = 262_144
"""Bytes of the reports of one list; a longer report stands alone."""
LISTS: Final = "report.list.*"
"""The filter over lists; the last token is the name of the worker."""

_LIST: Final = LISTS.removesuffix("*")

_log = telemetry.get_logger("tocsin.reports")
_decode: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class ReportList(Message):
    """Encoded reports, as one message."""

    def __init__(self, waiting: "list[_Waiting]") -> None:
        self._waiting = waiting
        self.reports = [one.report for one in waiting]

    def encode(self) -> bytes:
        """Return the list as JSON."""
        return b"[%b]" % b",".join(waiting.body for waiting in self._waiting)


class _Waiting(msgspec.Struct):
    report: Report
    body: bytes
    message_id: str
    stored: "asyncio.Future[int]"


class ListedReports:
    """The store of a worker's messages: reports in lists, and all others unchanged."""

    def __init__(self, log: Publisher, worker: str) -> None:
        """`worker`: the token of its name."""
        self._log = log
        self._subject = LISTS.replace("*", worker)
        self._waiting: deque[_Waiting] = deque()
        self._sending: set[asyncio.Task[None]] = set()

    async def write(self, writes: Sequence[Publish]) -> list[Written]:
        """Store several inputs as they are."""
        return await self._log.write(writes)

    async def publish(self, subject: str, message: Message, *, message_id: str, ttl: float | None = None) -> int:
        """Store an input; return the sequence of a report's list.

        Raises:
            RequestRefused: the log cannot store it.
            LogUnavailable: the log did not answer.
        """
        if not isinstance(message, Report):
            return await self._log.publish(subject, message, message_id=message_id, ttl=ttl)
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._send)
        waiting = _Waiting(message, message.encode(), message_id, loop.create_future())
        self._waiting.append(waiting)
        return await waiting.stored

    def _send(self) -> None:
        while self._waiting:
            task = asyncio.create_task(self._store(self._take()))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    def _take(self) -> list[_Waiting]:
        taken, size = [self._waiting.popleft()], 0
        size = len(taken[0].body)
        while self._waiting and len(taken) < MAX_REPORTS:
            size += len(self._waiting[0].body)
            if size > MAX_LIST_BYTES:
                break
            taken.append(self._waiting.popleft())
        return taken

    async def _store(self, reports: list[_Waiting]) -> None:
        ids = "\n".join(waiting.message_id for waiting in reports)
        message_id = blake2b(ids.encode(), digest_size=16).hexdigest()
        try:
            sequence = await self._log.publish(self._subject, ReportList(reports), message_id=message_id)
        except Exception as error:  # noqa: BLE001 - each reporter gets it
            for waiting in reports:
                if not waiting.stored.done():
                    waiting.stored.set_exception(error)
        else:
            for waiting in reports:
                if not waiting.stored.done():
                    waiting.stored.set_result(sequence)


def read_message(subject: str, body: bytes) -> Message:
    """Decode a message, except a list, which `listed` decodes.

    Raises:
        DecodeError: it is unreadable.
    """
    return Listed(body) if subject.startswith(_LIST) else subjects.decode(subject, body)


def decode(subject: str, body: bytes) -> Message:
    """Decode an input as `read_message` does; the loop handles an unreadable input."""
    try:
        return read_message(subject, body)
    except DecodeError as error:
        return UnreadableInput(body, error)


class UnreadableInput(Message):
    """An input that cannot be read."""

    def __init__(self, body: bytes, error: DecodeError) -> None:
        self.body = body
        self.error = error

    def encode(self) -> bytes:
        """Return the body as it is."""
        return self.body


_COPIED: Final = DecodeError("it is a reply of the server to a read, whose sender addressed it here")


def refuse_copy(subject: str, body: bytes) -> Message:  # noqa: ARG001 - as `decode` has it
    """Return a copied input (`subjects.is_copied_input`) as an input that cannot be read."""
    return UnreadableInput(body, _COPIED)


class Listed(Message):
    """A list as it was stored."""

    def __init__(self, body: bytes) -> None:
        self.body = body


def listed(recorded: Recorded[Message]) -> Iterator[Recorded[Message]]:
    """Yield the reports of a list under their own subjects, or the message itself."""
    if not isinstance(recorded.message, Listed):
        yield recorded
        return
    try:
        bodies = _decode(recorded.message.body)
    except msgspec.MsgspecError as error:
        _log.warning(
            "list of reports unreadable, skipped", action="unreadable", sequence=recorded.sequence, error=str(error)
        )
        return
    for body in bodies[:MAX_REPORTS]:
        try:
            report = subjects.decode_as(Report, recorded.subject, bytes(body))
            subject = subjects.subject_of(report)
        except (DecodeError, ValueError) as error:
            _log.warning(
                "report unreadable, skipped", action="unreadable", sequence=recorded.sequence, error=str(error)
            )
            continue
        yield Recorded(report, subject, recorded.sequence, recorded.time, recorded.message_id)


def unlisted(message: StoredMessage) -> Sequence[StoredMessage]:
    """Return the reports of a stored list, each as if it had been stored alone.

    Another message is returned unchanged.
    """
    if not message.subject.startswith(_LIST):
        return (message,)
    recorded = Recorded[Message](Listed(message.body), message.subject, message.sequence, message.time)
    return [replace(message, subject=one.subject, body=one.message.encode()) for one in listed(recorded)]


def report_of_stage(  # noqa: PLR0913 - what a report names
    key: bytes,
    by: str,
    error: Failure,
    *,
    job: str,
    execution_id: str,
    step: str,
    attempt: int = execution.OF_EXECUTION,
    delivery: int | None = None,
    claim: int | None = None,
) -> Send:
    """Return the report by which a stage ends a claim or an execution.

    It ends the execution as a whole if no attempt is given. Stored after the reports of workers, it overtakes none of them. `by`: the name of the stage.
    """
    report = Report(
        job=job,
        execution_id=execution_id,
        outcome="failed",
        step=step,
        attempt=attempt,
        delivery=delivery,
        claim=claim,
        error=error,
        token=ids.report_token(key, execution_id, step, attempt),
        proof=ids.claim_proof(key, execution_id, step, attempt, claim),
        worker=by,
    )
    subject = subjects.subject_of(report)
    since = "".join(death.at.isoformat() for death in error.deaths[-1:])
    return Send(subject, report, message_id=ids.report_id(report.proof or "", f"{subject}.{error.type}.{since}"))


def authentic_report(recorded: Recorded[Message], key: bytes) -> Report | None:
    """Return the report of a stage, or of the worker of a claim.

    None: the message lacks a valid proof. Ids and sequences can be guessed; the proof cannot. The subject must be
    the report's own, because readers choose reports by subject.
    """
    report = recorded.message
    if not isinstance(report, Report) or report.proof is None:
        return None
    proof = ids.claim_proof(key, report.execution_id, report.step, report.attempt, report.claim)
    is_authentic = compare_digest(report.proof.encode(), proof.encode())
    return report if is_authentic and recorded.subject == subjects.subject_of(report) else None


def authentic_subject(subject: str, key: bytes) -> ReportSubject | None:
    """Return the content of a report's subject, if its publisher has the claim."""
    reported = subjects.parse_report(subject)
    if reported is None:
        return None
    proof = ids.claim_proof(key, reported.execution_id, reported.step, reported.attempt, reported.claim)
    return reported if compare_digest(reported.seal.encode(), ids.seal(proof, reported.job).encode()) else None
