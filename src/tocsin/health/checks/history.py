"""The history: a read model that may be behind, and must not be for long."""

from datetime import timedelta
from typing import Final

from ..context import CheckContext
from ..finding import Finding, bad, ok, warn

BEHIND: Final = timedelta(seconds=30)
FAR_BEHIND: Final = timedelta(minutes=10)


async def place(look: CheckContext) -> list[Finding]:
    """`history-behind`, `history-unreachable`."""
    if (reason := look.status.troubles.get("history")) is not None:
        return [
            bad(
                "history-unreachable",
                f"the history cannot be asked: {reason}",
                means="lists of executions and dead letters are not to be had; jobs run on",
                do="look at `database.url` (`tocsin config show`) and at the database",
            )
        ]
    history = look.status.history
    if history is None:
        return []  # there is no log
    age = timedelta() if history.since is None else look.age(history.since)
    text = f"the history is at {history.place} of {history.newest}"
    if age < BEHIND:
        return [ok("history-behind", text)]
    return [
        (bad if age >= FAR_BEHIND else warn)(
            "history-behind",
            f"{text}: {age.total_seconds():.0f} s behind",
            means="lists of executions lack what happened since; jobs run on, and nothing is lost",
            do="run `tocsin run recorder`, and look at its log for `not recorded`",
        )
    ]
