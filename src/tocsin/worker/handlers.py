"""Which function runs which task."""

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import Signature

from . import signatures


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered function, with what was found out about it once. `parameters`: besides the context."""

    name: str
    function: Callable[..., object]
    is_async: bool
    parameters: Signature | None


class Handlers:
    """The handlers of one worker, by the function that a definition names."""

    def __init__(self) -> None:
        """None yet."""
        self._by_name: dict[str, Handler] = {}

    def add(self, name: str, function: Callable[..., object]) -> None:
        """Register a handler.

        Raises:
            InvalidHandlerError: the function cannot be one, or `name` is no text.
            ValueError: the name is taken.
        """
        signatures.check_name(name)
        signatures.check(function)
        if (other := self._by_name.get(name)) is not None:
            taken, refused = signatures.name_of(other.function), signatures.name_of(function)
            raise ValueError(f"{name!r} is already run by {taken}(), so it cannot be run by {refused}() too")
        self._by_name[name] = Handler(name, function, signatures.is_async(function), signatures.parameters_of(function))

    def get(self, name: str) -> Handler | None:
        """The handler of a function."""
        return self._by_name.get(name)

    def nearest(self, name: str) -> str | None:
        """The known function that looks most like `name`, if any does."""
        return next(iter(difflib.get_close_matches(name, self._by_name, n=1)), None)

    def __iter__(self) -> Iterator[str]:
        """The functions, in the order of their registration."""
        return iter(self._by_name)

    def __len__(self) -> int:
        """How many."""
        return len(self._by_name)
