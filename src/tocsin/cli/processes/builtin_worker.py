"""The worker of `tocsin worker --builtin`."""

from collections.abc import Sequence
from typing import Annotated, Final, TypeAlias

import typer

from ... import Worker
from ...adapters.extras import ExtraNotInstalled, extra_of
from ...domain.definition.builtin_work import function_of
from ...domain.formats.document import listed
from ...settings.builtin import Builtin
from ...subjects import DEFAULT_QUEUE
from ...worker.builtin import BUILTINS
from ...worker.builtin.process import hide_memory
from ..runtime.errors import UsageError

_EXTRAS: Final = {"container": "container", "procedure": "sql", "sql": "sql"}
"""The extra of each built-in function that needs one."""


BuiltinFunctions: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A built-in function to offer, such as `command` or `http`, as far as the settings allow; repeatable.",
    ),
]
Secrets: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        metavar="NAME",
        help="A secret that inputs may refer to: a variable, file:/PATH or file:/FOLDER/*; repeatable.",
    ),
]


def builtin_worker(names: Sequence[str], queues: Sequence[str], name: str | None) -> Worker:
    """Return a worker without functions of its own."""
    if not names:
        raise UsageError(
            "No worker is named. Name an object as FILE.py:NAME, or built-in functions by --builtin.",
            code="worker-required",
        )
    try:
        return Worker(queues=queues or [DEFAULT_QUEUE], name=name)
    except ValueError as error:
        raise UsageError(f"{error}. Correct the option.", code="invalid-value") from None


def allow(worker: Worker, secrets: Sequence[str]) -> None:
    """Let the inputs and the work without code of a worker refer to secrets."""
    try:
        worker.allow_secrets(secrets)
    except ValueError as error:
        raise UsageError(str(error), code="invalid-secret-name") from None


def offer(worker: Worker, names: Sequence[str], settings: Builtin) -> None:
    """Let a worker offer built-in functions."""
    for name in dict.fromkeys(names):
        if name not in BUILTINS:
            raise UsageError(
                f"Built-in function `{name}` does not exist. The functions are {listed(BUILTINS)}.",
                code="unknown-builtin",
            )
        try:
            worker.offer(function_of(name), BUILTINS[name](settings))
        except ImportError as error:
            if extra_of(error) is None:
                raise
            raise ExtraNotInstalled(f"tocsin worker --builtin {name}", _EXTRAS[name]) from None
    if names:
        hide_memory()
