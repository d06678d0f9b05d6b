"""The settings of built-in functions, which a worker reads."""

import re
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field

from .fields import Duration
from .section import Section

_PATH = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[^/\0]+)+|/")


def _path(text: str) -> str:
    if not _PATH.fullmatch(text):
        raise ValueError("must be an absolute path without `.` and `..`")
    return text


def _variable(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_*][A-Za-z0-9_*]*", text):
        raise ValueError("must be the name of a variable; `*` stands for any characters")
    return text


AbsolutePath: TypeAlias = Annotated[str, AfterValidator(_path)]
VariablePattern: TypeAlias = Annotated[str, AfterValidator(_variable)]


class CommandRules(Section):
    """The rules of `tocsin worker --builtin command`. Nothing runs by default."""

    programs: tuple[AbsolutePath, ...] = ()
    """Programs that commands may run: `/PATH` of a program, or `/FOLDER/*` for each file directly in a folder.

    Symbolic links are followed before the comparison, on both sides. Only administrators should be able to write there."""
    interpreters: tuple[AbsolutePath, ...] = ()
    """Programs that may run a `script`, in the same form. Every author of jobs can then run any code as the worker's user."""
    directories: tuple[AbsolutePath, ...] = ()
    """Folders in which commands may run, with the folders inside them. The first is the default; without any it is `/`."""
    inherit: tuple[str, ...] = ("PATH", "LANG", "LC_ALL", "TZ")
    """Variables of the worker that commands inherit; they inherit no others."""
    variables: tuple[VariablePattern, ...] = ()
    """Variables that definitions may set; `REPORT_*` covers each with this beginning. Some, such as LD_PRELOAD, change what runs."""
    max_cpu: Duration | None = None
    """Greatest CPU time of each process of a command; null: unlimited."""
    max_memory: int | None = Field(default=None, ge=1_048_576)
    """Greatest address space of each process of a command, in bytes; null: unlimited."""


class Builtin(Section):
    """Built-in functions of the workers of this process."""

    command: CommandRules = CommandRules()
