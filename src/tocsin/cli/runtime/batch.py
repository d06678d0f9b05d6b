"""One operation on each of several ids: one that means nothing keeps none of the others from being done."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from rich.text import Text

from ...services.operations.errors import NotFound
from ...services.operator import Operator
from .error_report import failure_of
from .errors import UsageError
from .event_loop import run
from .session import Session

if TYPE_CHECKING:
    from dataclasses import Field


class _Done(Protocol):
    __dataclass_fields__: "ClassVar[dict[str, Field[Any]]]"


D = TypeVar("D", bound=_Done)


def on_each(
    session: Session,
    given: Sequence[str],
    operate: Callable[[Operator, str], Awaitable[D]],
    line: Callable[[D], Text],
) -> None:
    """Do it on each, and tell what was done, a `line` each.

    Raises:
        UsageError: some ids mean nothing; what could be done is done and told.
    """

    async def ask() -> tuple[list[D], list[NotFound]]:
        done: list[D] = []
        missing: list[NotFound] = []
        async with session.operator() as operator:
            for one in given:
                try:
                    done.append(await operate(operator, one))
                except NotFound as error:
                    missing.append(error)
        return done, missing

    done, missing = run(ask())
    if done:
        session.output.answer([asdict(one) for one in done], lambda: [line(one) for one in done])
    if missing:
        raise UsageError("; ".join(map(str, missing)), failure_of(missing[0]).code, code=missing[0].code)
