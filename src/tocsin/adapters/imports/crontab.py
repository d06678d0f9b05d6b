"""Jobs of a crontab.

Cron runs a command without a time limit, without a retry, beside an earlier run of the same entry, and never later: a run
that a downtime missed is not made up for. Each of these is written into the job.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePath, PurePosixPath
from typing import Final

from ...domain.definition import DefinitionError, DefinitionProblem, show
from ...domain.schedule.expression import ALIASES
from .commands import script
from .drafts import UNLIMITED, Draft, Draftings
from .findings import Finding
from .schedules import VIXIE, Zone, fields_of, set_clock_changes, set_cron, set_timezone

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
_RUNNERS: Final = frozenset(
    {
        *("sudo", "nice", "ionice", "nohup", "env", "flock", "timeout", "exec", "command", "time", "chronic", "setsid"),
        *("sh", "bash", "dash", "zsh", "ksh", "python", "python2", "python3", "php", "perl", "ruby", "node", "java"),
    }
)
"""Wrappers and interpreters."""
_CHECKS: Final = frozenset(
    {"cd", "test", "[", "[[", "if", "export", "source", ".", "umask", "set", "exit", "sleep", "true"}
)
_BREAKS: Final = frozenset({"&&", "||", ";", "|", "&", "(", "{", "then", "do", "!"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry.

    Attributes:
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


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A line that is neither a variable nor an entry."""

    line: int
    reason: str


def lines(text: str, *, is_system: bool) -> Iterator[Entry | Unreadable]:
    """Yield the entries of a crontab in order, and the lines that cannot be read."""
    environment: dict[str, str] = {}
    entries = copies = 0
    for number, line in enumerate(_END_OF_LINE.split(text), start=1):
        stripped = line.strip(_BLANK)
        if not stripped or stripped.startswith("#"):
            continue
        if variable := _VARIABLE.fullmatch(stripped):
            name = variable["double"] or variable["single"] or variable["bare"]
            value = variable["value"]
            is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
            environment[name] = value[1:-1] if is_quoted else value
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
    """Return whether its path or its entries say that a file is a system crontab."""
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


def program_of(command: str) -> str:
    """Return the first program that is no wrapper, or the script of an interpreter."""
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
        elif re.sub(r"[\d.]+$", "", program) in _RUNNERS or program in _RUNNERS:
            fallback, has_file = fallback or program, program == "flock"
        else:
            return re.sub(r"\.(sh|py|php|pl|rb|js|bash|jar)$", "", program)
    return fallback or "command"


_OF_CRON: Final = frozenset(
    {"CRON_TZ", "TZ", "SHELL", "MAILTO", "MAILFROM", "RANDOM_DELAY", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING"}
)
"""Variables with a meaning for cron; the others are the command's environment."""
_OF_USER: Final = ("HOME", "LOGNAME", "USER")
"""Variables that cron takes from the account of the user."""
_FLAG_FINDINGS: Final = {
    "n": ("mail-not-supported", "`-n` before the command is left out: cron mails the output of failed runs only"),
    "q": ("log-not-quiet", "`-q` before the command is left out"),
    "s": ("single-instance", "`-s` before the command is written as `overlap_policy: skip`"),
}
"""The finding about each flag before a command."""
_HOME: Final = re.compile(r"(?:^|[\s=:])~(?=[/\s]|$)")


def read(text: str, source: str, *, zone: Zone, now: datetime, is_system: bool | None) -> Draftings:
    """Return the jobs of a crontab.

    `is_system`: whether each entry names a user; None: find out.
    """
    drafted = Draftings(source)
    is_system_format = looks_like_system(source, text) if is_system is None else is_system
    read = [*lines(text, is_system=is_system_format)]
    entries = [entry for entry in read if isinstance(entry, Entry)]
    if is_system is None:
        drafted.findings += _format_findings(entries, source, is_system=is_system_format)
    for line in read:
        if isinstance(line, Unreadable):
            drafted.add("entry-not-readable", line.reason, line.line)  # not the line, which may hold a password
    drafted.drafts = [_draft(entry, source, zone, now) for entry in entries]
    if not drafted.drafts and not drafted.findings:
        drafted.add("document-skipped", "no entry is in this file")
    if not all("CRON_TZ" in entry.environment for entry in entries):
        zone.note_in(drafted, "the machine")
    if drafted.drafts:
        drafted.add("no-time-limit", f"a run is stopped after {UNLIMITED}: set `timeout` of each job")
    if any(draft.command is not None and "cwd" not in draft.command for draft in drafted.drafts):
        said = "a command starts in the first of `builtin.command.directories`, or in `/`: write `cwd` where it matters"
        drafted.add("working-folder", said)
    if not all("MAILTO" in entry.environment for entry in entries):
        said = "read the output of runs with `tocsin executions logs`, or write a handler that sends it"
        drafted.add("output-not-mailed", said)
    return drafted


def _format_findings(entries: Sequence[Entry], source: str, *, is_system: bool) -> Iterator[Finding]:
    if is_system:
        said = "each entry is read as a time, a user and a command; pass --user if it has no users"
        yield Finding("system-crontab", said, source)
    elif account := next((entry for entry in entries if entry.command.split(maxsplit=1)[0] in _NO_PROGRAMS), None):
        said = f"the command in line {account.line} begins with an account: pass --system if each entry has a user, else --user"
        yield Finding("user-crontab", said, source)


def _draft(entry: Entry, source: str, zone: Zone, now: datetime) -> Draft:
    command, stdin = split_input(entry.command)
    draft = Draft(program_of(command), f"{source}:{entry.line}", [entry.text])
    _set_schedule(draft, entry, zone, now)
    draft.fields |= {
        "overlap_policy": "skip" if "s" in entry.flags else "allow",
        "catch_up": "skip",
        "timeout": UNLIMITED,
        "retry": {"max_attempts": 1},
    }
    variables = entry.environment
    environment = {name: value for name, value in variables.items() if name not in _OF_CRON}
    if "TZ" in variables:
        environment["TZ"] = variables["TZ"]
        draft.add("zone-of-commands", f"TZ={variables['TZ']} is set for the command; cron's schedule follows CRON_TZ")
    shell = variables.get("SHELL") or "/bin/sh"
    draft.command = script(
        draft, shell, command, environment=environment, stdin=stdin, folder=_working_folder(variables.get("HOME"))
    )
    _report(draft, entry)
    return draft


def _working_folder(home: str | None) -> str | None:
    """Return the folder in which cron starts a command; None: not known."""
    if home is None or home == "/" or not home.startswith("/") or "$" in home or ".." in PurePosixPath(home).parts:
        return None
    return str(PurePosixPath(home))


def _set_schedule(draft: Draft, entry: Entry, zone: Zone, now: datetime) -> None:
    if entry.times == ("@reboot",):
        draft.add("reboot-not-supported", "the job has no schedule: trigger it from the start of the machine")
        return
    text = " ".join(entry.times)
    fields = fields_of(text)
    if any("~" in field for field in fields):
        draft.add(
            "random-delay-not-supported", f"`{' '.join(fields)}` names a random time; write a fixed time and `jitter`"
        )
        return
    is_wild = fields[0].startswith("*") or fields[1].startswith("*")
    if set_cron(draft, text, VIXIE) and set_timezone(draft, entry.environment.get("CRON_TZ") or zone.name):
        # Cron runs a fixed time once through every change of the clocks, soon after a gap. An entry with `*` in its minute or
        # hour follows the clocks.
        set_clock_changes(draft, now, {"fold": "both"} if is_wild else {"gap": "shift"})


def _report(draft: Draft, entry: Entry) -> None:
    variables = entry.environment
    if entry.user:
        draft.add(
            "user-not-supported", f"cron runs it as {entry.user}: start a worker as that user, on a queue of its own"
        )
    if variables.get("MAILTO"):
        draft.add("mail-not-supported", f"cron mails its output to {variables['MAILTO']}")
    for name in ("MAILFROM", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING"):
        if variables.get("MAILTO") and name in variables:
            draft.add("mail-not-supported", f"{name}={variables[name]} is a setting of cron's mail")
    for name in _OF_USER:
        if name not in variables and _names(entry.command, name):
            said = f"cron sets {name} to that of the user, and the worker does not: write it into `env`"
            draft.add("environment-not-supported", said)
    if "RANDOM_DELAY" in variables:
        draft.add(
            "random-delay-not-supported",
            f"RANDOM_DELAY={variables['RANDOM_DELAY']}: the job starts on time; write `jitter` to delay it",
        )
    if entry.is_quiet:
        draft.add("log-not-quiet", "`-` before the time is left out")
    _report_command(draft, entry)


def _report_command(draft: Draft, entry: Entry) -> None:
    for flag in dict.fromkeys(entry.flags):
        draft.add(*_FLAG_FINDINGS[flag])
    if odd := sorted({f"U+{ord(sign):04X}" for sign in entry.command if sign.isspace() and sign not in " \t"}):
        said = f"the command has white space that a shell takes as a letter ({', '.join(odd)}): check that it is wanted"
        draft.add("odd-white-space", said)


def _names(command: str, variable: str) -> bool:
    """Return whether a command names a variable; `~` is the home."""
    return re.search(rf"\$(?:{variable}\b|\{{{variable}\b)", command) is not None or (
        variable == "HOME" and _HOME.search(command) is not None
    )
