"""All that happened in one schedule, in order."""

from dataclasses import dataclass, field
from hashlib import blake2b


@dataclass(slots=True)
class Trace:
    """Lines of (seconds, who, what)."""

    lines: list[tuple[float, str, str]] = field(default_factory=list)

    def note(self, at: float, who: str, what: str) -> None:
        """One more."""
        self.lines.append((at, who, what))

    def digest(self) -> str:
        """The same for the same trace alone."""
        return blake2b(repr(self.lines).encode(), digest_size=16).hexdigest()

    def __str__(self) -> str:
        return "\n".join(f"{at:9.4f}  {who:<12} {what}" for at, who, what in self.lines)
