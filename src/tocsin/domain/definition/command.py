"""The command that a job or a step runs, and its rules."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from ..template import is_template
from .builtin_work import has_reference, size_problems, text_problems
from .errors import DefinitionProblem, excess, show
from .fields import Seconds, StoredModel, Text, Timeout, short_for

RESERVED_VARIABLES: Final = "TOCSIN_"
"""The beginning of the variables that every command gets."""
MAX_ARGUMENTS: Final = 256
LONGEST_GRACE_S: Final = 30.0
"""The recoverer ends an attempt that has not reported 60 seconds after its timeout (`recovery.grace`)."""
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

ExitCode: TypeAlias = Annotated[int, Field(ge=1, le=255, strict=True)]
ResultKind: TypeAlias = Literal["exit_code", "last_line", "json"]


class Command(StoredModel):
    """A command, which a worker with `--builtin command` runs. A list is short for `argv`."""

    argv: tuple[Text, ...] = ()
    """The program and its arguments, each a template that stays one argument. No shell reads them. Either this or `script`."""
    script: Text | None = None
    """A program for `interpreter`. It is no template: it reads the input from its standard input. Either this or `argv`."""
    interpreter: tuple[Text, ...] = ("/bin/sh",)
    """The program that runs `script`, and its options."""
    cwd: Text | None = None
    """The working folder; by default the first that the worker allows."""
    env: dict[str, Text] = {}
    """Variables of the command, each value a template. The worker must allow their names."""
    result: ResultKind = "exit_code"
    """The result of the step: `exit_code`: `{"exit_code": 0}`. `last_line`: the last line of the output, as text. `json`: that
    line, read as JSON."""
    retryable_exit_codes: tuple[ExitCode, ...] | None = None
    """The exit codes after which another attempt may help; None: all. After a signal it always may."""
    grace: Annotated[Seconds, Field(le=LONGEST_GRACE_S)] = 10.0
    """Seconds between SIGTERM and SIGKILL if the command has to end, at most 30."""
    max_cpu: Timeout | None = None
    """Seconds of CPU time of each process, rounded up; None: the limit of the worker."""
    max_memory: Annotated[int, Field(ge=1_048_576, strict=True)] | None = None
    """Bytes of address space of each process; None: the limit of the worker."""


CommandField: TypeAlias = Annotated[
    Command, BeforeValidator(short_for("argv", list, tuple), json_schema_input_type=Command | list[str])
]


def command_problems(command: Command) -> Iterator[DefinitionProblem]:
    if (not command.argv) == (command.script is None):
        reason = "give either `argv`, the program and its arguments, or `script`"
        yield DefinitionProblem(reason, field="command", code="exclusive-fields" if command.argv else "required")
    yield from excess(len(command.argv), "arguments", MAX_ARGUMENTS, "command.argv", "pass them as `input`")
    if not command.interpreter:
        yield DefinitionProblem("name the program that runs `script`", field="command.interpreter", code="required")
    yield from program_problems("command.argv", command.argv)
    yield from program_problems("command.interpreter", command.interpreter)
    yield from _secret_problems(command)
    yield from variable_problems("command.env", command.env)
    yield from (problem for text in command.argv for problem in text_problems("command.argv", text))
    yield from size_problems("command", command, instead="install the program on the workers")


def program_problems(field: str, words: Sequence[str]) -> Iterator[DefinitionProblem]:
    """Yield the problem of the first of these words, if there are any: the program."""
    if words and (not words[0] or is_template(words[0])):
        reason = "write the program itself: it is no template, because an input must not choose what runs"
        yield DefinitionProblem(reason, field=field, value=show(words[0]))


def _secret_problems(command: Command) -> Iterator[DefinitionProblem]:
    texts = {"argv": command.argv, "interpreter": command.interpreter, "cwd": (command.cwd or "",)}
    for field, written in texts.items():
        for text in written:
            if has_reference(text):
                reason = "other users of the machine can see it; refer to the secret in `env`, or in `input`"
                value, code = show(text), "secret-reference-not-allowed"
                yield DefinitionProblem(reason, field=f"command.{field}", value=value, code=code)


def variable_problems(field: str, env: Mapping[str, str]) -> Iterator[DefinitionProblem]:
    for name, text in env.items():
        if not _VARIABLE.fullmatch(name):
            reason = "the name of a variable is made of letters, digits and underscores"
            yield DefinitionProblem(reason, field=field, value=show(name))
        elif name.startswith(RESERVED_VARIABLES):
            reason = f"names that begin with {RESERVED_VARIABLES} are set by the worker"
            yield DefinitionProblem(reason, field=field, value=show(name), code="reserved-name")
        else:
            yield from text_problems(f"{field}.{name}", text)
