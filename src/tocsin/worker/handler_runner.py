"""The run of one handler.

From a claimed task to an outcome, with its secrets resolved.

Sync handlers run in daemon threads, unlike those of `concurrent.futures`: an abandoned handler must not keep the process from exiting.
"""

import asyncio
import json
import signal
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import fields
from datetime import timedelta
from dis import opmap
from functools import partial
from queue import SimpleQueue
from typing import Final, TypeAlias, cast
from urllib.parse import quote

from msgspec.structs import asdict
from pydantic import JsonValue

from .. import telemetry
from ..domain.definition.bindings import BindingError, bound_arguments
from ..domain.events import Dispatched, Failure, Input
from ..domain.ownership import EXECUTOR
from ..domain.secret_reference import (
    SecretNotAllowedError,
    SecretReferenceError,
    is_allowed,
    reference,
    resolve_references,
)
from ..domain.trace_context import TraceContext, context_in
from ..ports import Clock
from ..services.machine_secrets import read_secret
from . import results
from .builtin_call import BuiltinCall
from .context import Context
from .event_loop import running_loop
from .handlers import Handler, WrongInputError, bind
from .held_tasks import HeldTask, TimeLimits
from .outcome import Failed, Outcome, Stopped, StopReason, Succeeded
from .output import AttemptOutput, Output
from .shutdown import Flag

_SHORTEST_SECRET: Final = 4
"""The number of characters from which a value is redacted. A shorter value occurs by chance in any text."""
_SHORTEST_LINE: Final = 8
"""The number of characters from which a line of a value is redacted too. A key has long lines, and a brace alone is no secret."""


class SecretValues:
    """The secrets of one task.

    Resolved for its handler, and redacted from results and from the text of errors.
    """

    __slots__ = ("_allowed", "_lines", "_references")

    def __init__(self, allowed: Collection[str]) -> None:
        """Resolve the names in `allowed` only.

        Each author of a job may write any name into its definition.
        """
        self._allowed = allowed
        self._references: dict[str, str] = {}
        self._lines: dict[str, dict[str, str]] = {}
        """Lines of values and the references of the values, by the beginnings of the lines."""

    def resolve(self, task: Dispatched) -> tuple[Input, tuple[JsonValue, ...]]:
        """Return the task's input and args with every reference replaced.

        Raises:
            SecretReferenceError: a reference is malformed, this worker does not allow its name, or does not have the
                secret.
        """
        input_ = cast("Input", resolve_references(task.input, self.look_up)) if task.input else task.input
        if not task.args:
            return input_, ()
        return input_, tuple(cast("list[JsonValue]", resolve_references(list(task.args), self.look_up)))

    def redact(self, text: str) -> str:
        """Replace each resolved value by its reference.

        The value may be plain, or written as in `repr`, in JSON or in a URL. Of a value with several lines, such as a key, each longer
        line is replaced by itself too, because a program's output is kept line by line.
        """
        text = self.redact_values(text)
        return self._without_lines(text) if self._lines else text

    def redact_values(self, text: str) -> str:
        """Replace each whole value as `redact` does, and no lines of it.

        For what later steps and attempts use: a certificate begins with the same line as any other.
        """
        for value in sorted(self._references, key=len, reverse=True):
            text = text.replace(value, self._references[value])
        return text

    def _without_lines(self, text: str) -> str:
        """Replace the lines of values.

        A value may have thousands, and a program writes many lines to look at.
        """
        parts, end, at = list[str](), 0, 0
        while at <= len(text) - _SHORTEST_LINE:
            known = self._lines.get(text[at : at + _SHORTEST_LINE], {})
            line = max((line for line in known if text.startswith(line, at)), key=len, default=None)
            if line is None:
                at += 1
                continue
            parts += [text[end:at], known[line]]
            end = at = at + len(line)
        return "".join((*parts, text[end:]))

    def has_secret(self, text: str) -> bool:
        """Return whether a text has a whole value.

        A line of a value may be any text.
        """
        return any(value in text for value in self._references)

    def look_up(self, name: str) -> str | None:
        """Return a secret and redact it from now on; None: it does not exist.

        Raises:
            SecretReferenceError: this worker does not allow its name, or its file cannot be used.
        """
        if not is_allowed(name, self._allowed):
            raise SecretNotAllowedError(
                f"the input refers to `{name}`, which this worker does not allow; write `Worker(secrets=[{name!r}])`, or start "
                f"it with `--secret {name}`"
            )
        value = read_secret(name)
        if value is not None and len(value) >= _SHORTEST_SECRET:
            written = (repr(value)[1:-1], json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
            self._references |= dict.fromkeys((value, *written, quote(value, safe="")), reference(name))
            for each in value.splitlines():
                if len(line := each.strip()) >= _SHORTEST_LINE and line != value:
                    self._lines.setdefault(line[:_SHORTEST_LINE], {})[line] = reference(name)
        return value


_Work: TypeAlias = tuple[Future[object], Callable[[], object]]
_END: Final = None


@contextmanager
def in_trace(trace: TraceContext) -> Iterator[None]:
    """Make the span of a handler's run the current span of OpenTelemetry.

    It is current in this task and in the threads that it starts. The scheduler exports it.
    """
    from opentelemetry import context  # noqa: PLC0415 - most workers make no traces
    from opentelemetry import trace as api  # noqa: PLC0415

    flags = api.TraceFlags(api.TraceFlags.SAMPLED if trace.is_sampled else api.TraceFlags.DEFAULT)
    remote = api.SpanContext(int(trace.trace_id, 16), int(trace.span_id, 16), is_remote=True, trace_flags=flags)
    token = context.attach(api.set_span_in_context(api.NonRecordingSpan(remote)))
    try:
        yield
    finally:
        context.detach(token)


class Threads:
    """A pool that grows to the number of concurrent calls, which the worker's slots limit."""

    def __init__(self) -> None:
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def submit(self, function: Callable[[], object]) -> Future[object]:
        """Run a function in an idle or new thread, with the caller's context variables."""
        future: Future[object] = Future()
        context = copy_context()
        self._work.put((future, lambda: context.run(function)))
        if not self._idle.acquire(blocking=False):
            self._started += 1
            threading.Thread(target=self._serve, name=f"tocsin-task-{self._started}", daemon=True).start()
        return future

    def close(self) -> None:
        """Let every thread end once it is idle; does not wait."""
        for _ in range(self._started):
            self._work.put(_END)

    def _serve(self) -> None:
        while (work := self._work.get()) is not _END:
            _run(*work)
            del work  # an idle thread must not keep the last task's input alive
            self._idle.release()


def _run(future: Future[object], function: Callable[[], object]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except (StopIteration, GeneratorExit) as error:  # a task cannot await these; convert them as PEP 479 does
        failure = RuntimeError(f"the handler raised {type(error).__name__}")
        failure.__cause__ = error
        future.set_exception(failure)
    except BaseException as error:  # noqa: BLE001 - the future passes any exception to its awaiter
        future.set_exception(error)
    else:
        future.set_result(result)


_LONGEST_TIMEOUT_S: Final = 100 * 365 * 86_400.0
"""A longer timeout would not fit into a datetime."""
_OJS_FIELDS: Final = "ojs"
"""The key of the metadata with the fields that only the Open Job Spec's protocol needs."""


_SAME_IN_CONTEXT: Final = tuple(
    field.name
    for field in fields(Context)
    if field.name in Dispatched.__struct_fields__ and field.name not in {"input", "args", "meta", "traceparent"}
)
"""The fields that a context has as its task does."""
_SAME_TRACE: Final = nullcontext()
_running: Final = telemetry.meter().create_up_down_counter(
    "tocsin_running_tasks", description="Tasks whose handler runs in this worker, by function."
)
_outcomes: Final = telemetry.meter().create_counter(
    "tocsin_handler_outcomes", description="Attempts that ended in this worker, by function."
)
_OUTCOMES: Final[Mapping[type[Outcome], str]] = {Succeeded: "succeeded", Failed: "failed", Stopped: "stopped"}


class HandlerRunner:
    """Runs the handlers of one worker."""

    def __init__(
        self,
        worker: str,
        clock: Clock,
        threads: Threads,
        shutting_down: Flag,
        output: Output,
        *,
        secrets: Collection[str] = (),
    ) -> None:
        """Run sync handlers in `threads`; every context contains `shutting_down`, and sends to `output`.

        `secrets` are the names of the secrets that inputs may refer to.
        """
        self._secrets = frozenset(secrets)
        self._worker = worker
        self._clock = clock
        self._threads = threads
        self._shutting_down = shutting_down
        self._output = output
        self._time_limits = TimeLimits()

    async def run(self, handler: Handler, task: Dispatched, held_task: HeldTask) -> Outcome:
        """Run a handler under its step's timeout.

        An async handler that times out or is stopped is cancelled; a result that it returns nevertheless counts. A thread
        cannot be cancelled: that of a sync handler is abandoned (`held_task.abandoned`), and its result is discarded.
        """
        secrets = SecretValues(self._secrets)
        output = self._output.of(task, secrets.redact, secrets.redact_values)
        labels = {"function": task.function}
        _running.add(1, labels)
        try:
            outcome = await self._run(handler, task, held_task, secrets, output)
        finally:
            _running.add(-1, labels)
            output.close()
        _outcomes.add(1, {**labels, "outcome": _OUTCOMES[type(outcome)]})
        if not isinstance(outcome, Succeeded):
            await self._output.settle(output)
        return outcome

    async def _run(
        self, handler: Handler, task: Dispatched, held_task: HeldTask, secrets: SecretValues, output: AttemptOutput
    ) -> Outcome:
        delivery = held_task.assigned.assignment.delivery
        trace = context_in(task.execution_id, task.traceparent, "process", task.step, task.attempt, delivery)
        try:
            call = self._prepare(handler, task, held_task, secrets, output, trace)
        except (WrongInputError, SecretReferenceError) as error:
            return Failed(results.unusable_input(error))
        reason = held_task.stopped
        if reason is not None:
            return Stopped(reason)
        self._time_limits.begin(held_task, min(task.timeout, _LONGEST_TIMEOUT_S))
        runner = held_task.runner
        try:
            try:
                with _SAME_TRACE if trace is None else in_trace(trace):
                    value = await (
                        cast("Awaitable[object]", call()) if handler.is_async else self._in_thread(call, held_task)
                    )
            finally:
                self._time_limits.end(held_task)
        except BaseException as error:  # noqa: BLE001 - a handler may raise any, such as the panic of a library in Rust
            return _outcome_of(error, runner, task, held_task, secrets)
        if held_task.stopped is StopReason.CANCELLED:
            return Stopped(held_task.stopped)  # its result is not needed
        return results.outcome_of(value, secrets.redact_values)

    def _prepare(
        self,
        handler: Handler,
        task: Dispatched,
        held_task: HeldTask,
        secrets: SecretValues,
        output: AttemptOutput,
        trace: TraceContext | None,
    ) -> Callable[[], object]:
        """Return the call of a handler. Only this method and the handler see the secrets."""
        input_, args = secrets.resolve(task)
        assignment, of_task = held_task.assigned.assignment, asdict(task)
        context = Context._of(  # noqa: SLF001 - its only maker beside tests
            {
                **{name: of_task[name] for name in _SAME_IN_CONTEXT},
                "delivery": assignment.delivery,
                "input": input_,
                "args": args,
                "meta": {name: value for name, value in task.meta.items() if name != _OJS_FIELDS},
                "deadline": self._clock.now() + timedelta(seconds=min(task.timeout, _LONGEST_TIMEOUT_S)),
                "fence": assignment.claim,
                "worker": self._worker,
                "cancelled": held_task.cancelled,
                "shutting_down": self._shutting_down,
                "shard_epoch": None if task.shard is None else assignment.epoch,
                "leader_epoch": assignment.epoch if task.resource == EXECUTOR else None,
                "last_heartbeat": assignment.heartbeat,
                "traceparent": None if trace is None else trace.traceparent,
                "_output": output,
            }
        )
        if handler.is_builtin:
            if task.builtin is None:
                raise WrongInputError(f"`{task.function}` is built in, and the task has no specification for it")
            call = BuiltinCall(
                *(context, task.builtin, output, secrets.look_up),
                *(secrets.redact, secrets.redact_values, secrets.has_secret),
                timeout=task.timeout,
                job_uuid=task.job_uuid,
                is_handed_back=lambda: held_task.stopped is StopReason.SHUTDOWN,
            )
            return partial(handler.function, call)
        if task.bind is not None:
            args, input_ = (), _bound(task, task.bind, input_, secrets)
        if handler.parameters is None:
            return partial(handler.function, context)
        positional, by_name = bind(handler.parameters, args, input_)
        return partial(handler.function, context, *positional, **by_name)

    async def _in_thread(self, call: Callable[[], object], held_task: HeldTask) -> object:
        work = self._threads.submit(call)
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            if not work.done():
                held_task.abandoned = work
            raise


def _bound(task: Dispatched, bindings: Mapping[str, JsonValue], input_: Input, secrets: SecretValues) -> Input:
    try:
        return bound_arguments(
            bindings, input_, task.upstream, lambda value: resolve_references(value, secrets.look_up)
        )
    except BindingError as error:
        raise WrongInputError(str(error)) from None


def _is_ctrl_c(error: BaseException) -> bool:
    """Return whether SIGINT interrupted a handler, instead of a statement of the handler."""
    trace = error.__traceback__
    if not isinstance(error, KeyboardInterrupt) or trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    code, effect = trace.tb_frame.f_code, signal.getsignal(signal.SIGINT)
    if effect is signal.default_int_handler:  # it has no frame of its own
        return code.co_code[trace.tb_lasti] != opmap["RAISE_VARARGS"]
    return code is getattr(getattr(effect, "func", effect), "__code__", None)  # that of `asyncio.Runner` is partial


def _outcome_of(
    error: BaseException,
    runner: "asyncio.Task[object] | None",
    task: Dispatched,
    held_task: HeldTask,
    secrets: SecretValues,
) -> Outcome:
    """Return the outcome of a handler that raised an error in the asyncio task `runner`.

    Raise an error that is not the handler's: Ctrl-C, or the end of the event loop.
    """
    current = None if running_loop() is None else asyncio.current_task()
    if current is None or current is not runner or _is_ctrl_c(error):
        raise error
    if isinstance(error, asyncio.CancelledError):
        if held_task.stopped is not None:
            current.uncancel()
        elif current.cancelling():
            raise error
        elif not held_task.has_expired:
            message = "a task or future that the handler awaited was cancelled"  # not by the worker
            return Failed(Failure(type=results.CANCELLED_ITSELF, message=message))
    if held_task.stopped is not None:
        return Stopped(held_task.stopped)
    if held_task.has_expired:
        held_task.cancelled.set()
        return Failed(Failure(type=results.TIMED_OUT, message=f"did not finish within {task.timeout:g}s"))
    return Failed(results.raised(error, secrets.redact))
