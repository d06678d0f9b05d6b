"""Patience with replicas of a stream that lag behind its leader."""

from typing import Final

ANSWER_PAUSES: Final = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Pauses before each read of a message that is stored, because a lagging replica may answer."""
