"""Gaps without a leader, as the commits of leaders show them."""

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from tests.commits.processes import SEAL
from tests.domain.given import NOON
from tocsin.adapters.log_terms import LogTerms
from tocsin.domain.commit import Commit, CommitEvent, LogHead
from tocsin.domain.log_events import Began, Left, LogEvent, encode
from tocsin.domain.replay import Gap, gaps


def commits(*stored: tuple[str, int, Sequence[LogEvent | CommitEvent]]) -> list[Commit]:
    """Commits of writers at some seconds."""
    head, made = LogHead("k1"), list[Commit]()
    for writer, seconds, events in stored:
        encoded = [one if isinstance(one, CommitEvent) else encode(one, by="", cause="") for one in events]
        draft = SEAL.write(head, writer=writer, at=NOON + timedelta(seconds=seconds), taken={}, events=encoded)
        head, commit = SEAL.read(head, head.sequence + 1, draft.body)
        assert isinstance(commit, Commit)
        made.append(commit)
    return made


LOG = commits(
    ("a", 0, [Began(("ticker", "lock_keeper"))]),
    ("a", 7, []),
    ("b", 8, [Began(("planner",))]),
    ("b", 20, [Began(("ticker",))]),
    ("a", 21, []),
    ("b", 30, [Left({"planner": 2})]),
    ("b", 40, [Left({"ticker": 3})]),
)


def at(seconds: int) -> object:
    return NOON + timedelta(seconds=seconds)


def test_last_commit_of_a_leader_begins_a_gap() -> None:
    terms = LogTerms("ticker")
    for commit in (*LOG, *LOG):  # reads overlap
        terms.take(commit)
    first, taken_over, last = gaps(terms.changes)
    assert (first.start, first.end, first.after) == (None, at(0), "a")
    assert taken_over == Gap(NOON + timedelta(seconds=7), NOON + timedelta(seconds=20), "a", "b")
    assert (last.start, last.end, last.before) == (at(40), None, "b")


def test_decision_shows_the_leader_of_earlier_terms() -> None:
    due = CommitEvent("ledger.a.due", "ticker", "", msgspec.Raw(b"{}"))
    log = commits(("a", 0, [Began(("ticker",))]), ("c", 5, [due]), ("b", 20, [Began(("ticker",))]), ("b", 21, []))
    terms = LogTerms("ticker", after=log[0].first)
    for commit in log:
        terms.take(commit)
    [gap] = gaps(terms.changes)
    assert gap == Gap(NOON + timedelta(seconds=5), NOON + timedelta(seconds=20), None, "b")


def test_lease_of_a_stage_has_hyphens() -> None:
    terms = LogTerms("lock-keeper")
    for commit in LOG:
        terms.take(commit)
    assert [change.number for change in terms.changes] == [1]
