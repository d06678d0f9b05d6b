"""The commit and its chain: what is genuine, and what a stage has taken."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.commit import (
    FORMAT,
    MAX_COMMIT_BYTES,
    MAX_EVENTS,
    REKEYED,
    RESTORED,
    Commit,
    CommitEvent,
    CommitTooLarge,
    ForeignBody,
    LogHead,
    OverlappingRanges,
    Position,
    Seal,
    Taken,
    UnknownFormat,
    Untaken,
)

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
KEYS = {"k1": b"1" * 32, "k2": b"2" * 32}
SEAL = Seal("tocsin", 0, KEYS)
START = LogHead("k1")


def event(subject: str = "execution.nightly.e1.admitted", body: object = None) -> CommitEvent:
    return CommitEvent(subject, "planner", "REQUESTS-1", msgspec.Raw(msgspec.json.encode(body or {})))


def body_of(
    head: LogHead, *events: CommitEvent, seal: Seal = SEAL, first: int | None = None, at: datetime = NOON
) -> bytes:
    return seal.write(head, writer="w", at=at, taken={}, events=events, first=first).body


def read(
    bodies: Sequence[bytes], head: LogHead = START, seal: Seal = SEAL
) -> tuple[LogHead, list[Commit | ForeignBody]]:
    contents = []
    for body in bodies:
        head, content = seal.read(head, head.sequence + 1, body)
        contents.append(content)
    return head, contents


def genuine(*events: CommitEvent, head: LogHead = START) -> tuple[bytes, LogHead]:
    body = body_of(head, *events)
    return body, read([body], head)[0]


def test_events_are_numbered_through_commits() -> None:
    one, head = genuine(event(), event())
    two, head = genuine(event(), head=head)
    empty, head = genuine(head=head)
    assert (head.sequence, head.number) == (3, 3)
    _, commits = read([one, two, empty])
    assert [commit.first for commit in commits if isinstance(commit, Commit)] == [1, 3, 4]


def test_draft_names_the_head_that_a_reader_reaches() -> None:
    draft = SEAL.write(START, writer="w", at=NOON, taken={}, events=[event(), event()])
    assert msgspec.structs.replace(draft.after, sequence=1) == read([draft.body])[0]


def test_whole_content_is_read_again() -> None:
    taken = {"planner": {"REQUESTS": Taken(((1, 3), (7, 7)), NOON), "events": Taken(((1, 1),))}}
    events = [CommitEvent("lock.nightly.acquired", "planner", "@2026-01-02T12:00:00Z", msgspec.Raw(b'{"ttl":1.5}'))]
    body = SEAL.write(START, writer="host-1", at=NOON, taken=taken, events=events).body
    _, [commit] = read([body])
    assert commit == Commit("k1", FORMAT, "host-1", 1, "", NOON, taken, tuple(events))


@pytest.mark.parametrize(
    ("reason", "make"),
    [
        ("no commit", lambda _: b""),
        ("no commit", lambda _: b"{}"),
        ("no commit", lambda _: b"\xff" * 100),
        ("no commit", lambda body: body + b" " * MAX_COMMIT_BYTES),
        ("proof", lambda body: body[:-1] + b" }"),
        ("proof", lambda body: b"0" * 64 + body[64:]),
        ("proof", lambda _: body_of(START, event(), seal=Seal("other", 0, KEYS))),
        ("proof", lambda _: body_of(START, event(), seal=Seal("tocsin", 1, KEYS))),
        ("proof", lambda _: body_of(START, event(), seal=Seal("tocsin", 0, {"k1": b"3" * 32}))),
        ("proof", lambda _: body_of(msgspec.structs.replace(START, key="k2"), event())),
        ("follow", lambda _: body_of(msgspec.structs.replace(START, digest="f" * 64), event())),
        ("number", lambda _: body_of(START, event(), first=2)),
        ("number", lambda _: body_of(msgspec.structs.replace(START, number=5), event())),
    ],
)
def test_message_of_no_stage_is_foreign(reason: str, make: object) -> None:
    assert callable(make)
    forged = make(body_of(START, event()))
    head, [content] = read([forged])
    assert isinstance(content, ForeignBody)
    assert reason in content.reason
    assert head == msgspec.structs.replace(START, sequence=1)  # only the guard moves


def test_copy_of_a_genuine_commit_is_foreign() -> None:
    one, head = genuine(event())
    two, _ = genuine(event(), head=head)
    _, contents = read([one, one, two, one, two])
    assert [type(content) for content in contents] == [Commit, ForeignBody, Commit, ForeignBody, ForeignBody]


def test_one_of_two_commits_on_one_head_counts() -> None:
    one, other = body_of(START, event()), body_of(START, event(), event())
    head, contents = read([one, other])
    assert [type(content) for content in contents] == [Commit, ForeignBody]
    assert head.number == 1


def test_only_a_declared_gap_is_genuine() -> None:
    _, head = genuine(event(), event())
    lost = event(RESTORED, {"from": 2, "to": 90})
    after, [content] = read([body_of(head, lost, first=91)], head)
    assert isinstance(content, Commit)
    assert after.number == 91
    for wrong, first in [
        (event(RESTORED, {"from": 3, "to": 90}), 91),
        (event(RESTORED, {"from": 2, "to": 90}), 92),
        (event(RESTORED, {"from": 2, "to": 1}), 2),
        (event("log.began", {"from": 2, "to": 90}), 91),
    ]:
        assert isinstance(read([body_of(head, wrong, first=first)], head)[1][0], ForeignBody)
    assert isinstance(read([body_of(head, lost, event(), first=91)], head)[1][0], ForeignBody)


def test_key_is_changed_by_an_event() -> None:
    one, head = genuine(event(), event(REKEYED, {"key": "k2"}))
    assert head.key == "k2"
    two, _ = genuine(event(), head=head)
    under_the_old = body_of(msgspec.structs.replace(head, key="k1"), event())
    _, contents = read([one, under_the_old, two])
    assert [type(content) for content in contents] == [Commit, ForeignBody, Commit]
    with pytest.raises(UnknownFormat, match="k2"):
        read([one, two], seal=Seal("tocsin", 0, {"k1": KEYS["k1"]}))


def test_reader_stops_at_a_newer_format() -> None:
    fields = {"key": "k1", "format": FORMAT + 1, "first": 1, "previous": "", "news": True}
    newer = _proved(fields)
    with pytest.raises(UnknownFormat, match=f"{FORMAT + 1}"):
        read([newer])
    copied = _proved({**fields, "previous": "f" * 64})
    assert isinstance(read([copied])[1][0], ForeignBody)  # a copy stops no reader
    with pytest.raises(UnknownFormat, match="unreadable"):
        read([_proved({**fields, "format": FORMAT, "events": 7})])


def _proved(fields: dict[str, object]) -> bytes:
    """A body that the key proves, of any content."""
    content = msgspec.json.encode(fields)
    return SEAL._proof("k1", content) + b"\n" + content  # a writer of another version


def test_time_of_commits_never_goes_back() -> None:
    _, head = genuine(event())
    _, [commit] = read([body_of(head, event(), at=NOON - timedelta(hours=1))], head)
    assert isinstance(commit, Commit)
    assert commit.at == NOON


def test_commit_beyond_a_limit_is_not_written() -> None:
    with pytest.raises(CommitTooLarge, match="4,097 events"):
        body_of(START, *[event()] * (MAX_EVENTS + 1))
    with pytest.raises(CommitTooLarge, match="bytes"):
        body_of(START, event(body={"text": "x" * MAX_COMMIT_BYTES}))


@given(st.lists(st.sampled_from(["next", "copy", "forged", "overtaken", "other partition"]), max_size=30), st.randoms())
def test_reader_finds_exactly_the_genuine_commits(kinds: list[str], random: object) -> None:
    stored, written = list[bytes](), list[bytes]()
    head = START
    for number, kind in enumerate(kinds):
        mark = event(body={"n": number})
        match kind:
            case "next":
                written.append(body_of(head, mark))
                stored.append(written[-1])
                head, _ = SEAL.read(head, len(stored), stored[-1])
                continue
            case "copy" if written:
                stored.append(random.choice(written))  # type: ignore[attr-defined]
            case "forged":
                stored.append(body_of(head, mark, seal=Seal("tocsin", 0, {"k1": b"9" * 32})))
            case "overtaken" if head.digest:
                stored.append(body_of(START, mark))
            case _:
                stored.append(body_of(head, mark, seal=Seal("tocsin", 1, KEYS)))
        head, _ = SEAL.read(head, len(stored), stored[-1])
    end, contents = read(stored)
    assert [body for body, content in zip(stored, contents, strict=True) if isinstance(content, Commit)] == written
    assert (end.sequence, end.number) == (len(stored), len(written))


def test_position_has_a_floor_and_ranges_above() -> None:
    position = Position().take(Taken(((1, 1), (7, 7)), NOON))
    assert (position.floor, position.above) == (1, ((7, 7),))
    position = position.take(Taken(((2, 3), (5, 6)), NOON - timedelta(seconds=1)))
    assert (position.floor, position.above, position.until) == (3, ((5, 7),), NOON)
    assert position.take(Taken(((4, 4),))) == Position(7, (), NOON)


@pytest.mark.parametrize("ranges", [((1, 1),), ((3, 5),), ((7, 7),), ((9, 8),), ((4, 4), (4, 6)), ((4, 5), (5, 6))])
def test_place_is_taken_once(ranges: tuple[tuple[int, int], ...]) -> None:
    position = Position(3, ((7, 8),))
    with pytest.raises(OverlappingRanges):
        position.take(Taken(ranges))


@given(
    st.permutations(range(1, 40)), st.sets(st.integers(1, 39)), st.lists(st.tuples(st.integers(1, 8), st.booleans()))
)
def test_any_order_of_takes_ends_in_one_floor(
    places: list[int], foreign: set[int], sizes: list[tuple[int, bool]]
) -> None:
    """Undone places are taken later, and places that a stage does not get are taken with those that it gets."""
    own = [place for place in places if place not in foreign]
    position, untaken, left = Position(), Untaken(0), list(own)
    for place in sorted(own):
        untaken.add(place)
    for size, is_undone in [*sizes, (len(places), False)]:
        taken = left[:size]
        for place in taken:
            untaken.close(place)
        if is_undone:
            untaken.ranges(39, position)
            for place in taken:
                untaken.reopen(place)
            untaken.undo(None)
            continue
        left = left[size:]
        position = position.take(Taken(untaken.ranges(39, position)))
        untaken.keep()
        assert all(position.has(place) for place in taken)
        assert not any(position.has(place) for place in left)
    assert position == Position(39)
