"""The terms of the processes that lead a stage, which explain gaps.

A commit shows that its writer lives, so the newest commit of a leader is its last sign. A decision of the stage shows who
led it before the first term that is read.
"""

from datetime import datetime

from ..domain.commit import Commit
from ..domain.log_events import Began, LeaderChange, Left, decode
from ..engine.stage_leases import lease_of


class LogTerms:
    """The terms of one stage, in the commits between two numbers."""

    def __init__(self, lease: str, after: int = 0) -> None:
        """`lease`: the lease of the stage. `after`: the first number."""
        self.after = self.upto = after
        self.changes: list[LeaderChange] = []
        self._lease = lease
        self._holder: str | None = None
        self._sign: datetime | None = None
        """The last time (UTC) at which the leader stored a commit."""

    def take(self, commit: Commit) -> None:
        """Take the next commit; a commit that was taken before changes nothing."""
        if commit.first <= self.upto:
            return
        for number, event in enumerate(commit.events, commit.first):
            if self._holder is None and lease_of(event.by) == self._lease:
                self._holder = commit.writer
            match decode(event):
                case Began(stages) if self._lease in map(lease_of, stages):
                    self.changes.append(
                        LeaderChange(number, commit.at, commit.writer, begins=True, last_sign=self._sign)
                    )
                    self._holder = commit.writer
                case Left(terms) if self._lease in map(lease_of, terms) and commit.writer == self._holder:
                    self.changes.append(LeaderChange(number, commit.at, commit.writer, begins=False))
                case _:
                    pass
        if commit.writer == self._holder:
            self._sign = commit.at
        self.upto = commit.first + len(commit.events) - 1
