"""The ledger and the log, verified against the notary's checkpoints."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from ..archive.checkpoints import SIGNED_STREAMS, Checkpoint, CheckpointDamaged, RangeDigest, SignedCheckpoint
from ..archive.signing_keys import PublicKey
from ..domain.text import counted, utc_text
from ..ports import StoredMessage
from ..subjects import Stream

UNSIGNED_AFTER: Final = timedelta(minutes=10)
"""The age from which a message without a checkpoint is a finding."""
MAX_FINDINGS: Final = 1_000
"""Number of findings that a proof lists; the others are counted."""
_MAX_GAPS: Final = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """A range that is not proven, or a checkpoint that does not count."""

    entity: str
    reason: str


@dataclass(frozen=True, slots=True)
class Proof:
    """The outcome. `total` counts all findings; `remarks` says what was proven."""

    findings: tuple[Finding, ...]
    total: int
    remarks: tuple[str, ...]


class LogVerification:
    """Judges the messages of the signed streams, each stream in its order."""

    def __init__(
        self,
        keys: Sequence[PublicKey],
        checkpoints: Iterable[SignedCheckpoint],
        *,
        streams: Sequence[Stream] = SIGNED_STREAMS,
    ) -> None:
        """Verify with public keys, several after a change of keys.

        `checkpoints`: those of each stream, in order.
        """
        self._of: Mapping[Stream, _Chain] = {stream: _Chain(stream, keys) for stream in streams}
        self._findings: list[Finding] = []
        self._total = 0
        for signed in checkpoints:
            try:
                checkpoint = signed.content()
            except CheckpointDamaged as error:
                self._keep([Finding("checkpoints", str(error))])
                continue
            if checkpoint.stream in self._of:
                self._keep(self._of[checkpoint.stream].add(signed, checkpoint))

    def take(self, message: StoredMessage) -> None:
        """Judge the next message. Messages of other streams do not matter."""
        chain = self._of.get(message.stream)
        if chain is not None:
            self._keep(chain.take(message))

    def finish(self, now: datetime | None = None) -> Proof:
        """Return the outcome.

        `now`: messages without a checkpoint should be younger than `UNSIGNED_AFTER` at this time; None: the time of the newest
        message.
        """
        for chain in self._of.values():
            self._keep(chain.finish())
        newest = [chain.newest for chain in self._of.values() if chain.newest is not None]
        until = now or max(newest, default=None)
        for chain in self._of.values():
            if until is not None:
                self._keep(chain.overdue(until))
        remarks = tuple(chain.remark() for chain in self._of.values())
        return Proof(tuple(self._findings), self._total, remarks)

    def _keep(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self._total += 1
            if len(self._findings) < MAX_FINDINGS:
                self._findings.append(finding)


class _Chain:
    """The checkpoints of one stream, and the range that is being read."""

    def __init__(self, stream: Stream, keys: Sequence[PublicKey]) -> None:
        self.newest: datetime | None = None
        self._stream = stream
        self._keys = keys
        self._waiting: deque[Checkpoint] = deque()
        self._head: Checkpoint | None = None
        self._head_digest = ""
        self._range = RangeDigest()
        self._gaps: list[tuple[int, int]] = []
        self._position = 0
        self._unsigned = 0
        self._unsigned_from: StoredMessage | None = None

    def add(self, signed: SignedCheckpoint, checkpoint: Checkpoint) -> Iterator[Finding]:
        entity = f"checkpoint {checkpoint.number} of {self._stream}"
        if not any(key.has_signed(signed.text, signed.signature) for key in self._keys):
            yield Finding(entity, "its signature is not of this public key")
            return
        head = self._head
        number, first = (1, 1) if head is None else (head.number + 1, head.last + 1)
        if head is not None and checkpoint.number <= head.number:
            yield Finding(entity, f"it follows checkpoint {head.number}: it was copied or moved")
            return
        if checkpoint.number != number:
            yield Finding(
                _range(self._stream, first, checkpoint.first - 1),
                f"not proven: checkpoint {number} is missing before checkpoint {checkpoint.number}",
            )
        elif checkpoint.previous != self._head_digest or checkpoint.first != first:
            yield Finding(entity, "it does not follow the checkpoint before: two notaries signed apart from each other")
        if head is not None and checkpoint.installation != head.installation:
            yield Finding(entity, f"it is of installation {checkpoint.installation}, not {head.installation}")
        if head is not None and checkpoint.first <= head.last:
            return
        self._head, self._head_digest = checkpoint, signed.digest
        self._waiting.append(checkpoint)

    def take(self, message: StoredMessage) -> Iterator[Finding]:
        sequence = message.sequence
        if self.newest is None or message.time > self.newest:
            self.newest = message.time
        if sequence <= self._position:
            entity = _range(self._stream, sequence, sequence)
            yield Finding(entity, f"it comes after sequence {self._position}: it was added or moved")
            return
        while self._waiting and sequence > self._waiting[0].last:
            yield from self._judge(self._waiting.popleft())
        if not self._waiting:
            self._unsigned += 1
            if self._unsigned_from is None:
                self._unsigned_from = message
        elif sequence >= self._waiting[0].first:
            begin = max(self._position + 1, self._waiting[0].first)
            if sequence > begin:
                self._gap(begin, sequence - 1)
            self._range.take(message)
        self._position = sequence

    def finish(self) -> Iterator[Finding]:
        """Judge the ranges that were not read to their end."""
        while self._waiting:
            yield from self._judge(self._waiting.popleft())

    def overdue(self, now: datetime) -> Iterator[Finding]:
        """Judge the messages after the newest checkpoint."""
        oldest = self._unsigned_from
        if oldest is not None and now - oldest.time > UNSIGNED_AFTER:
            yield Finding(
                _range(self._stream, oldest.sequence, self._position),
                f"not proven: no checkpoint covers {counted(self._unsigned, 'message')} since {utc_text(oldest.time)}",
            )

    def remark(self) -> str:
        """Return how far the stream is signed."""
        unsigned = f"; {counted(self._unsigned, 'newer message')} not signed yet" if self._unsigned else ""
        if self._head is None:
            return f"{self._stream} is not signed{unsigned}"
        return (
            f"{self._stream} is signed up to sequence {self._head.last} by checkpoint {self._head.number} of "
            f"{utc_text(self._head.signed, 'seconds')}, installation {self._head.installation}{unsigned}"
        )

    def _gap(self, first: int, last: int) -> None:
        if len(self._gaps) <= _MAX_GAPS:
            self._gaps.append((first, last))

    def _judge(self, checkpoint: Checkpoint) -> Iterator[Finding]:
        """Compare the messages of a range with its checkpoint, and begin the next range."""
        held, begin = self._range, max(self._position + 1, checkpoint.first)
        if begin <= checkpoint.last:
            self._gap(begin, checkpoint.last)
        gaps, self._range, self._gaps = self._gaps, RangeDigest(), []
        if held.messages == checkpoint.messages and held.hexdigest() == checkpoint.digest:
            return
        was_whole = checkpoint.messages == checkpoint.last - checkpoint.first + 1
        missing = checkpoint.messages - held.messages
        if missing > 0:
            reason = f"{counted(missing, 'message')} removed, of {checkpoint.messages:,} that were signed"
        elif missing < 0:
            reason = f"{counted(-missing, 'message')} added to the {checkpoint.messages:,} that were signed"
        else:
            reason = f"changed: the digest of its {counted(held.messages, 'message')} is not the signed one"
        if gaps and was_whole:
            listed = ", ".join(_span(*gap) for gap in gaps[:_MAX_GAPS])
            reason += f": {listed}" + (" and more" if len(gaps) > _MAX_GAPS else "")
        yield Finding(
            _range(self._stream, checkpoint.first, checkpoint.last), f"{reason} (checkpoint {checkpoint.number})"
        )


def _range(stream: Stream, first: int, last: int) -> str:
    return f"{stream} {_span(first, last)}"


def _span(first: int, last: int) -> str:
    return str(first) if first >= last else f"{first}–{last}"
