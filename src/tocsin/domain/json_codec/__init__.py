"""Read and write the JSON bodies of messages with msgspec.

The class of a message is its only declaration: a struct of msgspec, of which a pydantic model is derived (`OwnMessage`), or
a pydantic model, of which a struct is derived (`CheckedMessage`, and definitions). A body that the fast reader does not
accept is read by pydantic, which decides and explains. So the fast reader may refuse too much, but never accept too much. One exception is harmless: of a key that stands twice, the last value counts, and the first is not
read, so that an integer too long for pydantic may stand there.

    types    msgspec's type of a pydantic field, and the rest of its validation
    codec    bodies to messages, parts that many messages repeat, and messages to bodies
"""

from .codec import filled, part, read, written

__all__ = ["filled", "part", "read", "written"]
