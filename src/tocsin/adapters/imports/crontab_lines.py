"""Lines of a crontab: variables, and entries with time, user and command."""

import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from ...domain.definition import DefinitionError, DefinitionProblem, show
from ...domain.schedule.expression import ALIASES

MAX_ENTRIES: Final = 10_000
"""The largest number of entries of a file, as many as a large installation has jobs."""
MAX_VARIABLES: Final = 1_000
"""The largest number of variables of a file."""
MAX_COPIES: Final = 100_000
"""The largest number of variables of all entries together: each job has those above its entry."""
_VARIABLE: Final = re.compile(
    r"""\s*(?:"(?P<double>[^"=]+)"|'(?P<single>[^'=]+)'|(?P<bare>[^\s"'=*@][^\s=]*))\s*=\s*(?P<value>.*)"""
)
_ESCAPED: Final = re.compile(r"\\.|%", re.DOTALL)
_BLANK: Final = " \t"
"""What separates words for cron: other white space belongs to a word."""
_FIELD: Final = re.compile(rf"[{_BLANK}]*([^{_BLANK}]+)")
_END_OF_LINE: Final = re.compile(r"\r\n?|\n")
_FLAGS: Final = re.compile(rf"-([nqs]+)[{_BLANK}]+(?=[^{_BLANK}])")
"""Flags of OpenBSD and FreeBSD before the command."""
_TIME: Final = re.compile(r"[\d*~@].*")
"""How an entry begins: names are of months and days only."""
_VALUE: Final = r"(?:(?:\d+|L|(?:sun|mon|tue|wed|thu|fri|sat)(?:[rs]{0,2}|[a-z]*day))[LW]?|(?-i:W)|[HR]\([\d-]*\)|H|\*)"
"""A value of a field of time. Of a lower-case `w` no dialect has a day of the week or a year: it is the program."""
_SIXTH: Final = re.compile(rf"[*?].*|(?i:{_VALUE}(?:[,/#~-]{_VALUE}?)*)")
"""A sixth field of time, which is no command: supercronic and Quartz have fields for seconds and years."""
_TIMES: Final = 5
_ACCOUNTS: Final = frozenset(
    {"root", "nobody", "daemon", "www-data", "nginx", "apache", "postgres", "mysql", "backup", "mail", "git", "ubuntu"}
)
"""Users that a user crontab hardly names as its program."""
_NO_PROGRAMS: Final = frozenset({"root", "nobody", "daemon", "www-data", "ubuntu"})
"""Accounts whose name is no program."""
_WRAPPERS: Final = frozenset(
    {"sudo", "nice", "ionice", "nohup", "env", "flock", "timeout", "exec", "command", "time", "chronic", "setsid"}
)
_INTERPRETERS: Final = frozenset(
    {"sh", "bash", "dash", "zsh", "ksh", "python", "python2", "python3", "php", "perl", "ruby", "node", "java"}
)
_CHECKS: Final = frozenset(
    {"cd", "test", "[", "[[", "if", "export", "source", ".", "umask", "set", "exit", "sleep", "true"}
)
_BREAKS: Final = frozenset({"&&", "||", ";", "|", "&", "(", "{", "then", "do", "!"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry.

    Attributes:
        line: its number.
        text: the line as written.
        times: five fields, or a single `@` word.
        user: the user of a system crontab.
        command: the command as written, with its `%`.
        environment: the variables above the entry.
        is_quiet: whether a `-` before it keeps cron's log quiet.
        flags: the letters of the flags before the command.
    """

    line: int
    text: str
    times: tuple[str, ...]
    user: str | None
    command: str
    environment: dict[str, str]
    is_quiet: bool = False
    flags: str = ""

    @property
    def names_account(self) -> bool:
        """Whether the command begins with the name of an account, as in a system crontab."""
        return self.command.split(maxsplit=1)[0] in _NO_PROGRAMS


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A line that is neither a variable nor an entry."""

    line: int
    reason: str


def lines(text: str, *, is_system: bool) -> Iterator[Entry | Unreadable]:
    """Yield the entries of a crontab in order, and the lines that cannot be read.

    Raises:
        DefinitionError: there are too many of them; the problem's source is `:line`.
    """
    environment: dict[str, str] = {}
    entries = copies = 0
    for number, line in enumerate(_END_OF_LINE.split(text), start=1):
        stripped = line.strip(_BLANK)
        if not stripped or stripped.startswith("#"):
            continue
        if variable := _VARIABLE.fullmatch(stripped):
            name = variable["double"] or variable["single"] or variable["bare"]
            environment[name] = _unquoted(variable["value"])
            if len(environment) > MAX_VARIABLES:
                raise _too_many(number, f"{MAX_VARIABLES:,} variables")
            continue
        entries += 1
        if entries > MAX_ENTRIES:
            raise _too_many(number, f"{MAX_ENTRIES:,} entries")
        copies += len(environment)
        if copies > MAX_COPIES:
            raise _too_many(number, f"{MAX_COPIES:,} variables of all entries together")
        yield _entry(number, stripped, environment, is_system=is_system)


def _too_many(line: int, most: str) -> DefinitionError:
    return DefinitionError(DefinitionProblem(f"more than {most}: divide the file", source=f":{line}", code="too-large"))


def looks_like_system(path: str, text: str) -> bool:
    """Return whether a file is a system crontab.

    Its path says so, or each entry names a usual account.
    """
    where = PurePath(path)
    if where.parent.name == "cron.d" or (where.name == "crontab" and where.parent.name == "etc"):
        return True
    entries = [entry for entry in lines(text, is_system=True) if isinstance(entry, Entry)]
    return bool(entries) and all(entry.user in _ACCOUNTS and entry.command for entry in entries)


def _entry(number: int, text: str, environment: dict[str, str], *, is_system: bool) -> Entry | Unreadable:
    is_quiet = text.startswith("-")
    rest = text[1:].lstrip() if is_quiet else text
    times, rest = _words(rest, 1 if rest.startswith("@") else _TIMES)
    user = None
    if is_system:
        users, rest = _words(rest, 1)
        user = users[0] if users else None
    command = rest.strip(_BLANK)
    if not times or not _TIME.fullmatch(times[0]):
        return Unreadable(number, "the line begins with no time: make it a comment, or write the time before it")
    sixth = (user or "", *command.split(maxsplit=1)[:1]) if len(times) == _TIMES else ()
    if field := next(filter(_SIXTH.fullmatch, sixth), None):
        remedy = "write `schedule` by hand, with the second as its first field, or the path of the command if it is one"
        return Unreadable(number, f"{show(field)} reads as a sixth field of time: {remedy}")
    flags = ""
    while found := _FLAGS.match(command):
        flags, command = flags + found[1], command[found.end() :]
    if not any(sign.isprintable() and sign != " " for sign in split_input(command)[0]):
        what = "a time, a user and a command" if is_system else "a time and a command"
        return Unreadable(number, f"the line has no command: an entry has {what}")
    if times[0].startswith("@") and times[0] != "@reboot" and times[0] not in ALIASES:
        return Unreadable(number, f"cron does not know {times[0]}")
    return Entry(number, text, times, user, command, dict(environment), is_quiet, flags)


def _words(text: str, count: int) -> tuple[tuple[str, ...], str]:
    words: list[str] = []
    at = 0
    while len(words) < count and (found := _FIELD.match(text, at)):
        words.append(found[1])
        at = found.end()
    return tuple(words), text[at:]


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value


def split_input(command: str) -> tuple[str, str | None]:
    r"""Return a command and its standard input.

    The first `%` ends the command, each later `%` ends a line of the input, and `\%` is a `%`. In the command a backslash takes the
    character after it along, so a `%` after two backslashes ends it. The input ends with a line break, unless it is empty.
    """
    end = next((found.start() for found in _ESCAPED.finditer(command) if found[0] == "%"), len(command))
    first = _ESCAPED.sub(lambda found: "%" if found[0] == "\\%" else found[0], command[:end])
    if end == len(command):
        return first, None
    text = re.sub(r"(?<!\\)%", "\n", command[end + 1 :]).replace("\\%", "%")
    return first, text if text.endswith("\n") or not text else f"{text}\n"


def program_of(command: str, *, skip: Collection[str] = _WRAPPERS | _INTERPRETERS) -> str:
    """Return a short name for a command.

    It is the first program that is no wrapper, or the script of an interpreter.
    """
    try:
        words = shlex.split(command[:2_000].replace(";", " ; "))
    except ValueError:
        words = command[:2_000].split()
    is_check, fallback, has_file = False, "", False
    for word in words:
        program = PurePath(word.strip("()`'\"")).name
        if word in _BREAKS:
            is_check = False
        elif is_check or not program or re.match(r"[-<>0-9{]|[A-Za-z_]\w*=|\$", word):
            continue
        elif has_file:
            has_file = False
        elif program in _CHECKS:
            is_check = True
        elif re.sub(r"[\d.]+$", "", program) in skip or program in skip:
            fallback, has_file = fallback or program, program == "flock"
        else:
            return re.sub(r"\.(sh|py|php|pl|rb|js|bash|jar)$", "", program)
    return fallback or "command"
