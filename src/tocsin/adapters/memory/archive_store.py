"""Archive objects in memory."""


class InMemoryArchiveStore:
    """Implement `ports.ArchiveStore`."""

    def __init__(self) -> None:
        """Start empty."""
        self._objects: dict[str, bytes] = {}

    async def put(self, name: str, body: bytes) -> None:
        """Store an object."""
        self._objects.setdefault(name, body)

    async def get(self, name: str) -> bytes | None:
        """Return an object, or None if it does not exist."""
        return self._objects.get(name)
