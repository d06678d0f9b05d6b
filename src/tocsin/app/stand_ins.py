"""Stand-ins for values that a graph knows only when it runs."""

import inspect
from collections.abc import Generator
from types import CodeType
from typing import Any, Final, NoReturn, Self

from typing_extensions import override

from .errors import AppError

_DECIDE: Final = "The plan is the same for every result. Pass {subject} to a step, and decide there."
_COMPUTE: Final = "Pass {subject} to a step, and compute there."
_GATHER: Final = "Steps that do not take each other's results run at the same time, also without `asyncio.gather`. Pass {subject} to a step."
_PICK: Final = "Pass all of {subject} to a step, and take the part that it needs there."


class UntraceableError(AppError, TypeError):
    """The function of a graph does something that cannot be a part of a plan."""

    code = "not-traceable"


class StandIn:
    """A value of a future execution."""

    __slots__ = ("_code", "_reference", "_subject", "_trace")

    def __init__(self, trace: object, code: CodeType, reference: str, subject: str) -> None:
        """Stand for `reference` in a plan; `code` is that of the graph's function, for errors."""
        self._trace = trace
        self._code = code
        self._reference = reference
        self._subject = subject

    def __await__(self) -> Generator[None, None, Self]:
        """Return itself: in the function of a graph, `await step()` is a step too."""
        yield from ()
        return self

    @override
    def __repr__(self) -> str:
        """Show the value that it stands for."""
        return f"<{self._subject}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)  # `copy` and others look for the methods of a protocol
        self._refuse(f"it reads `.{name}` of", _PICK)

    def __getitem__(self, key: object) -> NoReturn:
        self._refuse(f"it reads the element {key!r} of", _PICK)

    def __iter__(self) -> NoReturn:
        self._refuse("it iterates over", "The number of steps is fixed before. " + _PICK)

    def __call__(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Refuse to be called."""
        self._refuse("it calls", _COMPUTE)

    def _refuse(self, action: str, remedy: str) -> NoReturn:
        raise UntraceableError(f"{place(self._code)}: {action} {self._subject}. {remedy.format(subject='it')}")


def _refused(action: str, remedy: str) -> Any:  # noqa: ANN401 - a method of any signature
    def refuse(self: StandIn, *_: object) -> NoReturn:
        self._refuse(action, remedy)

    return refuse


for _name in ("str", "format"):
    setattr(StandIn, f"__{_name}__", _refused("it makes text of", _COMPUTE))
for _name in ("bool", "eq", "ne", "lt", "le", "gt", "ge", "contains"):
    setattr(StandIn, f"__{_name}__", _refused("it decides by", _DECIDE))
for _name in (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
):
    setattr(StandIn, f"__{_name}__", _refused("it computes with", _COMPUTE))
    setattr(StandIn, f"__r{_name}__", _refused("it computes with", _COMPUTE))
for _name in ("neg", "pos", "abs", "invert", "int", "float", "index", "round", "len"):
    setattr(StandIn, f"__{_name}__", _refused("it computes with", _COMPUTE))
StandIn.__hash__ = _refused("it gathers, or uses as a key,", _GATHER)  # type: ignore[method-assign]


def reference_of(value: StandIn, trace: object) -> str | None:
    """Return the reference of a binding; None: the value belongs to another plan."""
    # No methods of the class, which would hide attributes of a result.
    return value._reference if value._trace is trace else None  # noqa: SLF001


def place(code: CodeType) -> str:
    """Return the line of a graph's function that runs now, for an error."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return f"{code.co_filename}:{code.co_firstlineno if frame is None else frame.f_lineno}, in {code.co_name}()"
