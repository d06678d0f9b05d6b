"""The calls and tasks of handlers, which a simulation can end against their will."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

from .watchdog import HeldUp

T = TypeVar("T")
_CUTS: Final = 100
"""How often the tasks are ended that start others when they end."""


class Leash(Awaitable[object]):
    """A call of async code that can be ended although it catches its cancellation."""

    def __init__(self, call: Awaitable[object]) -> None:
        self._call = call
        self.is_cut = False
        """The code gets no further turn."""

    def __await__(self) -> Generator[Any, None, object]:
        """Run the code until it ends, or is cancelled after the leash was cut."""
        steps = cast("Generator[Any, None, object]", self._call.__await__())
        error: BaseException | None = None
        while True:
            if self.is_cut:
                with suppress(RuntimeError):  # it catches this end too
                    steps.close()
                raise error or asyncio.CancelledError
            try:
                awaited = steps.send(None) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            error = None
            try:
                yield awaited
            except BaseException as caught:  # noqa: BLE001 - thrown into the code
                error = caught


class StartedTasks:
    """The tasks that handlers started, and that have not ended."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], tuple[str, Leash]] = {}
        self._is_over = False
        self.held_up_by: str | None = None
        """The task that gave no turn to anything else, and was ended."""

    def __bool__(self) -> bool:
        """Return whether one of them runs."""
        return bool(self._tasks)

    @property
    def all(self) -> "tuple[asyncio.Task[Any], ...]":
        """Return the tasks."""
        return tuple(self._tasks)

    def start(
        self,
        handler: str,
        coroutine: Any,  # noqa: ANN401 - what the handler gives, of any type
        create: Callable[[Coroutine[Any, Any, T]], "asyncio.Task[T]"],
    ) -> "asyncio.Task[T]":
        """Start a task for a handler, or for another task of it."""
        if not isinstance(coroutine, Coroutine):
            return create(coroutine)  # which refuses it, or takes a generator
        code = getattr(coroutine, "__qualname__", type(coroutine).__qualname__)
        name = f"{code.rpartition('<locals>.')[2]} of the handler {handler}"
        leash = Leash(coroutine)
        leash.is_cut = self._is_over
        running: Any = self._run(name, leash)
        running.__name__ = getattr(coroutine, "__name__", code)
        running.__qualname__ = code
        task = create(running)
        self._tasks[task] = name, leash
        task.add_done_callback(self._ended)
        return task

    async def _run(self, name: str, leash: Leash) -> object:
        try:
            return await leash
        except HeldUp:
            self.held_up_by = name
            raise RuntimeError(f"the task {name} held up the simulation") from None

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        del self._tasks[task]

    def cancel(self) -> None:
        """Cancel the tasks. They may clean up."""
        for task in self._tasks:
            task.cancel()

    async def abandon(self) -> frozenset[str]:
        """End the tasks that still run, also against their will; return their names."""
        self._is_over = True
        names = frozenset(name for name, _ in self._tasks.values())
        for _ in range(_CUTS):
            if not self._tasks:
                break
            for task, (_, leash) in self._tasks.items():
                leash.is_cut = True
                task.cancel()
            await asyncio.gather(*self.all, return_exceptions=True)
        return names
