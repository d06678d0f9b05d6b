"""The guards of decisions that were messages, which readers of inputs still judge."""

from tocsin import subjects

EXPECTED = "Nats-Expected-Last-Subject-Sequence"
GUARD = "Nats-Expected-Last-Subject-Sequence-Subject"


def guarded(subject: str, *, prefix: str = "", expect: int = 0) -> dict[str, str]:
    """Return the headers of a decision with this subject."""
    return {EXPECTED: str(expect), GUARD: f"{prefix}{subjects.guard_of(subject)}"}
