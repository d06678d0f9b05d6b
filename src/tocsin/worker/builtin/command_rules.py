"""The rules of a worker for commands, which its settings have."""

import os
import shutil
from collections.abc import Iterable
from fnmatch import fnmatchcase
from os.path import realpath
from pathlib import Path
from typing import Final

from ...settings.builtin import CommandRules
from ..builtin_call import BuiltinFailure, not_allowed

NOT_ALLOWED: Final = "command_not_allowed"
NOT_STARTED: Final = "command_not_started"
NOT_ENDED: Final = "command_not_ended"


def working_folder(rules: CommandRules, written: str | None) -> str:
    """Return the folder in which a command runs, without symbolic links.

    Raises:
        BuiltinFailure: this worker does not allow it, or it does not exist.
    """
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

    Raises:
        BuiltinFailure: this worker does not allow it, or it does not exist.
    """
    path = str(Path(folder, written)) if os.sep in written else shutil.which(written, path=search_path)
    if path is None:
        raise BuiltinFailure(NOT_STARTED, f"program {written!r} is not in PATH ({search_path})")
    file = realpath(path)
    if not any(_covers(entry, file, Path(path).name) for entry in allowed):
        raise BuiltinFailure(NOT_ALLOWED, not_allowed(f"the program {file}", f"command.{setting}"))
    return file


def check_variables(rules: CommandRules, names: Iterable[str]) -> None:
    """Check the variables that a definition sets.

    A variable may change what a program runs, as LD_PRELOAD and BASH_ENV do, so none is allowed by default.

    Raises:
        BuiltinFailure: this worker does not allow one.
    """
    for name in names:
        if not any(fnmatchcase(name, pattern) for pattern in rules.variables):
            raise BuiltinFailure(NOT_ALLOWED, not_allowed(f"the variable {name}", "command.variables"))


def _covers(entry: str, file: str, name: str) -> bool:
    """Return whether an entry allows a file: `/FOLDER/*` each file directly in a folder.

    `name` is that under which it is called. Another name for the same file is another program: on some systems `sh` and `df`
    are links to one file, which looks at its name. An entry that is no link allows the file under every name.
    """
    folder, _, last = entry.rpartition("/")
    if last == "*":
        return str(Path(file).parent) == realpath(folder or "/")
    return file == realpath(entry) and (name == last or entry == file)
