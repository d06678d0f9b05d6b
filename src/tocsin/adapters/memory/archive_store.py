"""Objects in memory."""


class InMemoryArchiveStore:
    """Implements `ports.ArchiveStore`."""

    def __init__(self) -> None:
        """Empty."""
        self._objects: dict[str, bytes] = {}

    async def put(self, name: str, body: bytes) -> None:
        """Keep an object."""
        self._objects.setdefault(name, body)

    async def get(self, name: str) -> bytes | None:
        """An object."""
        return self._objects.get(name)
