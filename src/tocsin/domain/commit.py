"""The commit: a message that holds all decisions of a moment, and their chain.

A commit is the only kind of message of its partition's subject, and its guard covers the whole subject. So its decisions rest on everything that was
stored before. It names the inputs that its stages took, and its events are numbered through the log.

A body is a proof (64 hexadecimal digits), a line feed, and JSON. A message is genuine if its proof is valid, it names the digest of the newest
genuine commit, and its events continue the numbers. Every other message is foreign, also a copy of a genuine commit: readers skip it, but its
sequence counts for the guard.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from hmac import compare_digest
from typing import Final, NamedTuple, TypeAlias

import msgspec

from .errors import TocsinError

FORMAT: Final = 1
"""The newest format that this version reads and writes."""
FIRST_KEY: Final = "k1"
FIRST_PARTITION: Final = 0
"""The partition of an installation that has one."""
MAX_EVENTS: Final = 4_096
MAX_CALL_BYTES: Final = 524_288
"""Bytes of the events of one decision."""
MAX_COMMIT_BYTES: Final = 786_432
"""Bytes of a body. A server must accept 1 MiB (`max_payload`), so that headers have room."""
RESTORED: Final = "log.restored"
"""The subject of the event after a lost tail; its commit alone may leave a gap in the numbers."""
REKEYED: Final = "log.rekeyed"
"""The subject of the event that names the key of all later commits."""

_START: Final = datetime.min.replace(tzinfo=UTC)
_PROOF: Final = re.compile(rb"[0-9a-f]{64}\n")
_PROOF_LENGTH: Final = 65
_HEADS: Final = b"heads\n"
"""The beginning of signed heads, as of no commit."""

Range: TypeAlias = tuple[int, int]
"""The first and the last position of positions that follow each other."""


class CommitTooLarge(TocsinError):
    """A commit, or one decision in it, exceeds the limits of a message."""

    code = "commit-too-large"


class UnknownFormat(TocsinError):
    """A genuine commit has a format of a newer version: this process cannot read on."""

    code = "unknown-format"


class OverlappingRanges(TocsinError):
    """An input or event was taken twice by one stage."""

    code = "taken-twice"


class CommitEvent(msgspec.Struct, frozen=True, gc=False):
    """An event in a commit. Its number is the commit's `first` plus its index.

    Attributes:
        subject: the subject under which readers see it; it names the kind and the entity.
        by: the stage that decided it.
        cause: the cause of the decision: an input (`REQUESTS-4711`), an event (`0-4711`: partition and number), or a
            deadline (`@` and its instant).
        body: the fields, as JSON.
    """

    subject: str
    by: str
    cause: str
    body: msgspec.Raw


class Taken(msgspec.Struct, frozen=True, omit_defaults=True):
    """The positions of one source that a stage took with a commit.

    `until` is the server's time (UTC) of the last input, so that a stream that lost its tail is found. Events have none.
    """

    ranges: tuple[Range, ...]
    until: datetime | None = None


class Commit(msgspec.Struct, frozen=True):
    """The content of a commit.

    Attributes:
        key: the id of the key of its proof.
        format: the version of its format.
        writer: the process that stored it.
        first: the number of its first event, or of the next event if it has none.
        previous: the digest of the newest genuine commit before it; empty: it is the first.
        at: the time (UTC) of its decisions, by the earliest credible clock. It never goes back.
        taken: the positions that its stages took, by stage and source.
    """

    key: str
    format: int
    writer: str
    first: int
    previous: str
    at: datetime
    taken: dict[str, dict[str, Taken]]
    events: tuple[CommitEvent, ...]


class Restoration(msgspec.Struct, frozen=True, rename={"from_": "from"}):
    """The body of `log.restored`.

    Numbers after `from_` and up to `to` were lost, and are not used again.
    """

    from_: int
    to: int


class _Key(msgspec.Struct, frozen=True):
    """The body of `log.rekeyed`."""

    key: str


class _Form(msgspec.Struct, frozen=True):
    """The fields that every format has."""

    key: str
    format: int
    first: int
    previous: str


class LogHead(msgspec.Struct, frozen=True):
    """The end of a partition's log, as far as a reader has read it."""

    key: str
    """The id of the key of the next commit."""
    sequence: int = 0
    """The sequence of the newest message, genuine or foreign. It guards the next commit."""
    number: int = 0
    digest: str = ""
    """The digest of the newest genuine commit; empty: the log has no commit."""
    at: datetime = _START
    """The time (UTC) of the newest genuine commit."""


class CommitDraft(NamedTuple):
    """A commit to store, and the head after it, but for its sequence."""

    body: bytes
    after: LogHead


class ForeignBody(NamedTuple):
    """A message in a log that no stage stored there."""

    sequence: int
    reason: str


class Seal:
    """Proves and checks the commits of one partition of an installation."""

    def __init__(self, installation: str, partition: int, keys: Mapping[str, bytes]) -> None:
        """`keys`: the keys by their ids, each of 32 to 64 bytes."""
        self._place = f"{installation}\n{partition}\n".encode()
        self._keys = keys

    def write(
        self,
        head: LogHead,
        *,
        writer: str,
        at: datetime,
        taken: Mapping[str, Mapping[str, Taken]],
        events: Sequence[CommitEvent],
        first: int | None = None,
        format_: int = FORMAT,
    ) -> CommitDraft:
        """Return the commit that follows a head.

        `first`: the number of its first event, only for a restoration; None: the next number. `format_`: a format that all readers know.

        Raises:
            CommitTooLarge: it has too many events, or too many bytes.
        """
        commit = Commit(
            head.key,
            format_,
            writer,
            head.number + 1 if first is None else first,
            head.digest,
            max(at, head.at),
            {stage: dict(sources) for stage, sources in taken.items()},
            tuple(events),
        )
        content = _encode(commit)
        size = _PROOF_LENGTH + len(content)
        if len(events) > MAX_EVENTS or size > MAX_COMMIT_BYTES:
            raise CommitTooLarge(
                f"a commit of {len(events):,} events has {size:,} bytes; at most {MAX_EVENTS:,} events and"
                f" {MAX_COMMIT_BYTES:,} bytes are allowed"
            )
        body = self._proof(head.key, content) + b"\n" + content
        return CommitDraft(body, _after(head, head.sequence, commit, body))

    def read(self, head: LogHead, sequence: int, body: bytes) -> tuple[LogHead, Commit | ForeignBody]:
        """Return the head after a message that follows `head`, and the commit in it.

        Raises:
            UnknownFormat: it is genuine, and of a newer format.
        """
        content = body[_PROOF_LENGTH:]
        commit = self._genuine(head, body, content)
        if isinstance(commit, str):
            return msgspec.structs.replace(head, sequence=sequence), ForeignBody(sequence, commit)
        try:
            return _after(head, sequence, commit, body), commit
        except msgspec.MsgspecError as error:
            raise UnknownFormat(f"a key of the log is unreadable: {error}. Upgrade this process") from error

    def sign(self, heads: Sequence[LogHead]) -> bytes:
        """Return heads with a proof that a process of the installation read up to them."""
        content = _HEADS + _encode(heads)
        return self._proof(heads[-1].key, content) + b"\n" + content

    def signed(self, body: bytes) -> tuple[LogHead, ...]:
        """Return the heads that a process of the installation signed; () if none did."""
        content = body[_PROOF_LENGTH:]
        if _PROOF.match(body) is None or not content.startswith(_HEADS):
            return ()
        try:
            heads = _decode_heads(content[len(_HEADS) :])
        except msgspec.MsgspecError:
            return ()
        if not heads or heads[-1].key not in self._keys:
            return ()
        is_proved = compare_digest(body[: _PROOF_LENGTH - 1], self._proof(heads[-1].key, content))
        return heads if is_proved else ()

    def _genuine(self, head: LogHead, body: bytes, content: bytes) -> Commit | str:
        if len(body) > MAX_COMMIT_BYTES or _PROOF.match(body) is None:
            return "it is no commit"
        if head.key not in self._keys:
            raise UnknownFormat(f"the log is proved by the key {head.key!r}, which this process does not have")
        if not compare_digest(body[: _PROOF_LENGTH - 1], self._proof(head.key, content)):
            return f"its proof is not by the key {head.key!r} of this installation and partition"
        try:
            form = _decode_form(content)
            if form.previous != head.digest:
                return "it does not follow the newest commit: it is a copy, or its writer was overtaken"
            commit = _decode(content) if form.format <= FORMAT else None
        except msgspec.MsgspecError as error:
            raise UnknownFormat(f"a genuine commit is unreadable: {error}. Upgrade this process") from error
        if commit is None:
            raise UnknownFormat(
                f"a commit has format {form.format}; this version reads formats up to {FORMAT}. Upgrade this process"
            )
        if commit.first != head.number + 1 and not _is_restoration(head, commit):
            return f"its events begin with number {commit.first:,}, and the next number is {head.number + 1:,}"
        return commit

    def _proof(self, key: str, content: bytes) -> bytes:
        digest = blake2b(self._place, key=self._keys[key], digest_size=32)
        digest.update(content)
        return digest.hexdigest().encode()


def _after(head: LogHead, sequence: int, commit: Commit, body: bytes) -> LogHead:
    key = next((_decode_key(event.body).key for event in commit.events if event.subject == REKEYED), head.key)
    number = commit.first + len(commit.events) - 1
    return LogHead(key, sequence, number, blake2b(body, digest_size=32).hexdigest(), commit.at)


def _is_restoration(head: LogHead, commit: Commit) -> bool:
    if [event.subject for event in commit.events] != [RESTORED]:
        return False
    lost = _decode_restoration(commit.events[0].body)
    return lost.from_ == head.number <= lost.to == commit.first - 1


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Commit).decode
_decode_heads: Final = msgspec.json.Decoder(tuple[LogHead, ...]).decode
_decode_form: Final = msgspec.json.Decoder(_Form).decode
_decode_key: Final = msgspec.json.Decoder(_Key).decode
_decode_restoration: Final = msgspec.json.Decoder(Restoration).decode


class Position(msgspec.Struct, frozen=True):
    """The place up to which a stage has taken one source.

    Everything up to `floor` is taken, and the ranges above it: jobs take turns, so inputs are not taken in order.
    """

    floor: int = 0
    above: tuple[Range, ...] = ()
    until: datetime | None = None
    """The server's time (UTC) of the newest input that is taken."""

    def has(self, place: int) -> bool:
        if place <= self.floor or not self.above:
            return place <= self.floor
        index = bisect_left(self.above, (place + 1,)) - 1  # the last range that begins at the place or before
        return index >= 0 and place <= self.above[index][1]

    def take(self, taken: Taken) -> "Position":
        """Return the position after more ranges.

        Raises:
            OverlappingRanges: a place is taken already, or twice.
        """
        ranges = sorted((*self.above, *taken.ranges))
        before = (0, self.floor)
        merged = [before]
        for first, last in ranges:
            if first > last or first <= merged[-1][1]:
                raise OverlappingRanges(
                    f"places {first:,} to {last:,} are taken, or no range; the floor is {self.floor:,}"
                )
            if first == merged[-1][1] + 1:
                merged[-1] = merged[-1][0], last
            else:
                merged.append((first, last))
        (_, floor), *above = merged
        times = [time for time in (self.until, taken.until) if time is not None]
        return Position(floor, tuple(above), max(times, default=None))


class Untaken:
    """The places of a source that a stage saw, and that no commit has taken.

    A place that the stage gets covers the earlier places that it does not get: they are taken with it.
    """

    def __init__(self, floor: int) -> None:
        self._covered = floor
        """The newest place that belongs to a call, or was passed."""
        self._open: dict[int, tuple[int, int]] = {}
        """By place: the number of its calls that are open, and the first place that it covers."""
        self._closed: dict[int, int] = {}
        """By place: the first place that it covers."""
        self._passed: list[Range] = []

    def add(self, place: int) -> None:
        """Note a call on a place; places come in order."""
        calls, first = self._open.get(place, (0, self._covered + 1))
        self._open[place] = calls + 1, first
        self._covered = max(self._covered, place)

    def close(self, place: int) -> None:
        calls, first = self._open.pop(place)
        if calls > 1:
            self._open[place] = calls - 1, first
        else:
            self._closed[place] = first

    def reopen(self, place: int) -> None:
        """Note that the decision on a call was undone."""
        calls, first = self._open.get(place) or (0, self._closed.pop(place))
        self._open[place] = calls + 1, first

    def undo(self, newest: int | None) -> None:
        """Keep the places that needed no decision. `newest`: the newest that exists; None: all do."""
        self._passed += ((first, place) for place, first in self._closed.items())
        self._closed.clear()
        if newest is not None:
            self.forget(newest)
            self._passed = [(first, min(last, newest)) for first, last in self._passed if first <= newest]

    def forget(self, newest: int) -> None:
        """Forget places after the newest that exists."""
        self._covered = min(self._covered, newest)
        self._open = {place: call for place, call in self._open.items() if place <= newest}

    def ranges(self, seen: int, position: Position) -> tuple[Range, ...]:
        """Return the ranges up to `seen` that can be taken, outside the position."""
        if seen > self._covered:
            self._passed.append((self._covered + 1, seen))
            self._covered = seen
        spans = sorted((*self._passed, *((first, place) for place, first in self._closed.items())))
        return tuple(_without(_joined(spans), ((1, position.floor), *position.above)))

    def keep(self) -> None:
        """Forget the places that were taken: the commit is stored."""
        self._closed.clear()
        self._passed.clear()


def _joined(ranges: Iterable[Range]) -> Iterator[Range]:
    """Yield ranges in order, with ranges that touch or overlap as one range."""
    before: Range | None = None
    for first, last in ranges:
        if before is None:
            before = first, last
        elif first <= before[1] + 1:
            before = before[0], max(before[1], last)
        else:
            yield before
            before = first, last
    if before is not None:
        yield before


def _without(ranges: Iterable[Range], taken: Sequence[Range]) -> Iterator[Range]:
    """Yield the parts of ranges that are not taken; both are in order."""
    index = 0
    for first, last in ranges:
        begin = first
        while index < len(taken) and taken[index][1] < begin:
            index += 1
        place = index
        while place < len(taken) and taken[place][0] <= last:
            other, end = taken[place]
            if other > begin:
                yield begin, other - 1
            begin, place = end + 1, place + 1
        if begin <= last:
            yield begin, last
