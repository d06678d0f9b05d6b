"""Jobs of a crontab.

Cron runs a command without a time limit, without a retry, beside an earlier run of the same entry, and never later: a run
that a downtime missed is not made up for. Each of these is written into the job.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import PurePosixPath
from typing import Final

from .commands import script
from .crontab_lines import Entry, Unreadable, lines, looks_like_system, program_of, split_input
from .drafts import UNLIMITED, Draft, Draftings
from .findings import Finding
from .schedules import VIXIE, Zone, fields_of, set_clock_changes, set_cron, set_timezone

_OF_CRON: Final = frozenset(
    {"CRON_TZ", "TZ", "SHELL", "MAILTO", "MAILFROM", "RANDOM_DELAY", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING"}
)
"""Variables with a meaning for cron; the others are the command's environment."""
_OF_USER: Final = ("HOME", "LOGNAME", "USER")
"""Variables that cron takes from the account of the user."""
_FLAGS: Final = {
    "n": ("mail-not-supported", "`-n` before the command is left out: cron mails the output of failed runs only"),
    "q": ("log-not-quiet", "`-q` before the command is left out"),
    "s": ("single-instance", "`-s` before the command is written as `overlap_policy: skip`"),
}
"""The finding about each flag before a command."""
_HOME: Final = re.compile(r"(?:^|[\s=:])~(?=[/\s]|$)")


def read(text: str, source: str, *, zone: Zone, now: datetime, is_system: bool | None) -> Draftings:
    """Return the jobs of a crontab.

    Args:
        text: the content of the file.
        source: its name.
        zone: the machine's time zone.
        now: the present, aware.
        is_system: whether each entry names a user; None: find out.
    """
    drafted = Draftings(source)
    is_system_format = looks_like_system(source, text) if is_system is None else is_system
    if is_system is None:
        drafted.findings += _format_findings(text, source, is_system=is_system_format)
    in_zone = True
    for entry in lines(text, is_system=is_system_format):
        if isinstance(entry, Unreadable):
            drafted.add("entry-not-readable", entry.reason, entry.line)  # not the line, which may hold a password
            continue
        drafted.drafts.append(_draft(entry, source, zone, now))
        in_zone = in_zone and "CRON_TZ" in entry.environment
    if not drafted.drafts and not drafted.findings:
        drafted.add("document-skipped", "no entry is in this file")
    if not in_zone:
        zone.note_in(drafted, "the machine")
    if drafted.drafts:
        drafted.add("no-time-limit", f"a run is stopped after {UNLIMITED}: set `timeout` of each job")
    if any(draft.command is not None and "cwd" not in draft.command for draft in drafted.drafts):
        said = "a command starts in the first of `builtin.command.directories`, or in `/`: write `cwd` where it matters"
        drafted.add("working-folder", said)
    if any(
        "MAILTO" not in entry.environment
        for entry in lines(text, is_system=is_system_format)
        if isinstance(entry, Entry)
    ):
        said = "read the output of runs with `tocsin executions logs`, or write a handler that sends it"
        drafted.add("output-not-mailed", said)
    return drafted


def _format_findings(text: str, source: str, *, is_system: bool) -> Iterator[Finding]:
    if is_system:
        said = "each entry is read as a time, a user and a command; pass --user if it has no users"
        yield Finding("system-crontab", said, source)
        return
    entries = (entry for entry in lines(text, is_system=False) if isinstance(entry, Entry))
    if account := next((entry for entry in entries if entry.names_account), None):
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
        set_clock_changes(draft, now, lambda _: {"fold": "both"} if is_wild else {"gap": "shift"})


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
        draft.add(*_FLAGS[flag])
    if odd := sorted({f"U+{ord(sign):04X}" for sign in entry.command if sign.isspace() and sign not in " \t"}):
        said = f"the command has white space that a shell takes as a letter ({', '.join(odd)}): check that it is wanted"
        draft.add("odd-white-space", said)


def _names(command: str, variable: str) -> bool:
    """Return whether a command names a variable; `~` is the home."""
    return re.search(rf"\$(?:{variable}\b|\{{{variable}\b)", command) is not None or (
        variable == "HOME" and _HOME.search(command) is not None
    )
