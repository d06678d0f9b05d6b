"""The function `tocsin.command`: it runs the command of a definition."""

import json
import math
import os
import shutil
import signal
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from os.path import realpath
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from ...domain.definition import DefinitionProblem
from ...domain.definition.command import Command
from ...settings import SettingsError
from ...settings.builtin import CommandRules
from ..builtin_call import BuiltinCall, BuiltinFailure, not_allowed
from ..task_logger import Level
from .arguments import identity, rendered_arguments, rendered_variables, result_of
from .lines import Lines
from .process import Exit, Order, can_limit_processes, run

NOT_ALLOWED: Final = "command_not_allowed"
NOT_STARTED: Final = "command_not_started"
NOT_ENDED: Final = "command_not_ended"


def working_folder(rules: CommandRules, written: str | None) -> str:
    """Return the folder in which a command runs, without symbolic links."""
    if written is None:
        return realpath(rules.directories[0] if rules.directories else "/")
    if not Path(written).is_absolute():
        raise BuiltinFailure(NOT_ALLOWED, f"cwd {written!r} is not absolute; write the whole path", retryable=False)
    folder = realpath(written)
    if not any(Path(folder).is_relative_to(realpath(allowed)) for allowed in rules.directories):
        raise BuiltinFailure(NOT_ALLOWED, not_allowed(f"the folder {folder}", "command.directories"))
    return folder


def program(written: str, allowed: Iterable[str], folder: str, search_path: str, *, setting: str = "programs") -> str:
    """Return the file of a program, without symbolic links.

    A name without a slash is searched in `search_path`, and a relative path begins in the working folder.
    """
    path = str(Path(folder, written)) if os.sep in written else shutil.which(written, path=search_path)
    if path is None:
        raise BuiltinFailure(NOT_STARTED, f"program {written!r} is not in PATH ({search_path})")
    file = realpath(path)
    if not any(_covers(entry, file, Path(path).name) for entry in allowed):
        raise BuiltinFailure(NOT_ALLOWED, not_allowed(f"the program {file}", f"command.{setting}"))
    return file


def _covers(entry: str, file: str, name: str) -> bool:
    """Return whether an entry allows a file: `/FOLDER/*` each file directly in a folder.

    `name` is that under which it is called. Another name for the same file is another program: on some systems `sh` and `df`
    are links to one file, which looks at its name. An entry that is no link allows the file under every name.
    """
    folder, _, last = entry.rpartition("/")
    if last == "*":
        return str(Path(file).parent) == realpath(folder or "/")
    return file == realpath(entry) and (name == last or entry == file)


_OUT: Final[Level] = "info"
_ERR: Final[Level] = "warning"


class CommandFunction:
    """Runs commands that the rules of a worker allow."""

    def __init__(self, rules: CommandRules, environment: Mapping[str, str] = os.environ) -> None:
        """`environment`: the variables of this process."""
        if not rules.programs and not rules.interpreters:
            reason = "required for `--builtin command`, and not given: list the programs that commands may run"
            raise SettingsError(DefinitionProblem(reason, field="builtin.command.programs", code="required"))
        if rules.max_processes is not None and not can_limit_processes():
            reason = (
                "the kernel sets no limit on the processes of this worker's user, as for root. Run the worker as a user of its own, "
                "or limit its service or container instead (TasksMax, --pids-limit)"
            )
            problem = DefinitionProblem(
                reason,
                field="builtin.command.max_processes",
                value=str(rules.max_processes),
                code="limit-without-effect",
            )
            raise SettingsError(problem)
        self._rules = rules
        self._environment = environment

    async def __call__(self, call: BuiltinCall) -> JsonValue:
        """Run the command of a task, and return its result."""
        command = call.read(Command, "command")
        order = self._order(command, call)
        out, err = Lines(call.output, _OUT), Lines(call.output, _ERR)
        end = await run(order, json.dumps(call.context.input, ensure_ascii=False).encode(), out, err)
        _check(end, command, order, err.shown(call.redact))
        return result_of(command.result, out, call.redact)

    def _order(self, command: Command, call: BuiltinCall) -> Order:
        rules = self._rules
        for name in command.env:  # LD_PRELOAD and BASH_ENV change what a program runs, so none is allowed by default
            if not any(fnmatchcase(name, pattern) for pattern in rules.variables):
                raise BuiltinFailure(NOT_ALLOWED, not_allowed(f"the variable {name}", "command.variables"))
        folder = working_folder(rules, command.cwd)
        env = {
            **{name: self._environment[name] for name in rules.inherit if name in self._environment},
            **rendered_variables(command.env, call),
            **identity(call),
        }
        search_path = self._environment.get("PATH", os.defpath)
        if command.script is None:
            argv = rendered_arguments(command.argv, call)
            executable = program(argv[0], rules.programs, folder, search_path)
        else:
            argv = command.interpreter
            executable = program(argv[0], rules.interpreters, folder, search_path, setting="interpreters")
        return Order(
            executable,
            argv,
            command.script,
            folder,
            env,
            command.grace,
            None if (cpu := _least(command.max_cpu, rules.max_cpu)) is None else max(1, math.ceil(cpu)),
            None if (memory := _least(command.max_memory, rules.max_memory)) is None else int(memory),
            rules.max_file_size,
            rules.max_processes,
        )


def _check(end: Exit, command: Command, order: Order, shown: str) -> None:
    """Raise unless the command ended with exit code 0. `shown`: what it wrote last."""
    name = Path(order.argv[0]).name
    if end.problem is not None:
        message = f"{name} cannot be started in {order.cwd}: {end.problem}"
        raise BuiltinFailure(NOT_STARTED, message)
    if end.exit is None and end.signal is None:
        raise BuiltinFailure(NOT_ENDED, f"{name} cannot be ended: process {end.remaining[0]} is left")
    said = f":\n{shown}" if shown else ""
    if end.signal is not None:
        signal_name = _signal_name(end.signal)
        message = f"{name} was ended by {signal_name}{said}"
        raise BuiltinFailure(f"signal_{signal_name}", message, signal=end.signal)
    if end.exit:
        codes = command.retryable_exit_codes
        message = f"{name} ended with exit code {end.exit}{said}"
        is_retryable = codes is None or end.exit in codes
        raise BuiltinFailure(f"exit_code_{end.exit}", message, retryable=is_retryable, exit_code=end.exit)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return str(number)


def _least(*limits: float | None) -> float | None:
    return min((limit for limit in limits if limit is not None), default=None)
