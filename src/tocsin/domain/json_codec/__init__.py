"""Read and write the JSON bodies of messages with msgspec.

Everything is derived from the pydantic classes, which remain the only declaration of a message. A body that the fast
reader does not accept is read by pydantic, which decides and explains. So the fast reader may refuse too much, but
never accept too much. One exception is harmless: of a key that stands twice, the last value counts, and the first is not
read, so that an integer too long for pydantic may stand there.

    types    msgspec's type of a pydantic field, the rest of its validation, and parts that many messages repeat
    codec    bodies to messages, and messages to bodies, which leave out fields with their default
"""

from .codec import filled, plain, read, written

__all__ = ["filled", "plain", "read", "written"]
