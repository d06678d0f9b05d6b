"""Being asked to stop: once politely, twice at once."""

from .flag import Flag


class Shutdown:
    """What a worker knows about its own end."""

    def __init__(self) -> None:
        """Nobody asked yet."""
        self.asked = Flag()
        """Take no more, let handlers finish."""
        self.hurried = Flag()
        """Let no handler finish."""

    def ask(self) -> None:
        """Stop; the second time: at once."""
        if self.asked.is_set():
            self.hurried.set()
        self.asked.set()
