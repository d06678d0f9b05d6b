"""One operation on each of several ids; an unknown id does not stop the others."""

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
    ids: Sequence[str],
    operate: Callable[[Operator, str], Awaitable[D]],
    line: Callable[[D], Text],
) -> None:
    """Run an operation on each id, and print a `line` for each result.

    Raises:
        UsageError: some ids do not exist. The other ids are processed and their results printed.
    """

    async def operate_all() -> tuple[list[D], list[NotFound]]:
        done: list[D] = []
        missing: list[NotFound] = []
        async with session.operator() as operator:
            for id_ in ids:
                try:
                    done.append(await operate(operator, id_))
                except NotFound as error:
                    missing.append(error)
        return done, missing

    done, missing = run(operate_all())
    if done:
        session.output.answer([asdict(result) for result in done], lambda: [line(result) for result in done])
    if missing:
        raise UsageError("; ".join(map(str, missing)), failure_of(missing[0]).code, code=missing[0].code)
