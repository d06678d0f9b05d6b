"""Findings of an import: differences from the source, each with a stable code."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from typing_extensions import override

NOTES: Final[Mapping[str, str]] = {
    "catch-up-assumed": "The file does not say whether missed runs are made up for; `catch_up: once` is written.",
    "command-settings": "The settings of a worker decide which commands it runs; the finding names what these jobs need.",
    "container-settings": "The settings of a worker decide which containers it runs; the finding names what these jobs need.",
    "containers-as-steps": "The containers of a pod become steps, which may run on different workers.",
    "data-interval": "The source runs at the end of a data interval and names its beginning; Tocsin names the instant of the run.",
    "document-skipped": "A document of the file describes nothing that has a schedule.",
    "duration-rounded": "An interval is written in whole milliseconds.",
    "empty-step-removed": "A step without work is left out; the steps after it wait for the steps before it.",
    "forbid-retries-later": "The source may start a run that it forbade as soon as the active run ends; Tocsin skips it.",
    "function-needs-handler": "The worker needs a handler that does the work of this Python function.",
    "log-not-quiet": "A line begins with `-`, or its command with `-q`, which keeps cron's log quiet; Tocsin records each run.",
    "no-time-limit": "The source has no time limit; a timeout of 24 hours is written, because a job needs a timeout.",
    "output-not-mailed": "Cron mails the output of a command; Tocsin stores it with the run.",
    "pod-restricted": "Pods have fewer rights than in the source, unless a pod template of the worker says otherwise.",
    "priority-order": "Brokers order priorities differently; in Tocsin the higher number goes first.",
    "schedule-rewritten": "The same instants are written in another way, because Tocsin reads the original otherwise.",
    "single-instance": "The flag `-s` of an entry is written as `overlap_policy: skip`.",
    "system-crontab": "The file is read as a system crontab, with a user before each command.",
    "working-folder": "Cron starts a command in the home of its user, and a worker in a folder of its settings.",
    "xcom-as-upstream": "A step that returned a value to another does so through `context.upstream`.",
    "zone-of-commands": "`TZ` is the time zone of the commands only; cron's schedule does not follow it.",
}
"""Findings that lose nothing: they say what was written, and what to prepare."""

LOSSES: Final[Mapping[str, str]] = {
    "branch-not-supported": "A step that chooses the following steps has no equivalent.",
    "call-not-followed": "A call of a function outside the file may schedule something, and is not followed.",
    "computed-at-run-time": "A value is computed when the source runs, and cannot be read without running it.",
    "entry-not-readable": "A line or an entry cannot be read.",
    "entry-changed": "A later statement changes or removes an entry; the job is what the first statement says.",
    "entry-repeated": "Two entries have one name: in one schedule the last counts, and here each is a job.",
    "end-not-supported": "The schedule ends at a date; delete or pause the job then.",
    "environment-not-supported": "A variable comes from a source outside the file.",
    "expiry-not-supported": "A task that waits too long for a worker is discarded in the source, and not in Tocsin.",
    "field-not-supported": "A field of the source has no equivalent in a job.",
    "fold-fires-once": "The clocks repeat a fixed time; the source runs twice then, Tocsin once.",
    "history-limit-not-supported": "The number of finished runs to keep has no equivalent; `retention` is a time.",
    "interval-anchor": "An interval counts from the registration of the job, and in the source from another moment.",
    "job-not-registrable": "A job breaks a rule of Tocsin, and is only written as a comment.",
    "mail-not-supported": "Cron mails the output of the command to an address.",
    "odd-white-space": "A command has white space, such as a no-break space, that a shell takes as a letter.",
    "operator-needs-handler": "An operator's code is part of the source; the worker needs a handler that does its work.",
    "parallel-runs-not-supported": "Several pods of one run have no equivalent.",
    "random-delay-not-supported": "A random delay or time is not taken over; `jitter` delays starts at random.",
    "reboot-not-supported": "A run at the start of a machine has no equivalent.",
    "run-limit-not-supported": "The number of runs at a time has no limit; the job may run alone or freely.",
    "schedule-not-expressible": "The schedule has no equivalent; the job is written without a schedule.",
    "start-not-supported": "The schedule begins at a date in the future; the job's schedule begins at its registration.",
    "stdin-not-supported": "The standard input of a command is not given to it, because its shell is unknown.",
    "template-not-supported": "A text has a template that the source fills in at run time.",
    "timezone-assumed": "The file names no time zone, or several; pass --timezone, or check it in each job.",
    "timezone-unknown": "The time zone is not an IANA name; the job is written without a schedule.",
    "trigger-rule-not-supported": "A step starts under another rule than the success of the steps before it.",
    "user-crontab": "The file is read without users before the commands, although some look like one.",
    "user-not-supported": "Cron runs the command as another user; a worker runs it as its own.",
}
"""Findings that make the exit code 1: something of the source is not in the job."""

FINDING_CODES: Final[Mapping[str, str]] = {**NOTES, **LOSSES}


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference between a job and its source."""

    code: str
    """The stable name of this kind of finding, a key of `FINDING_CODES`."""
    text: str
    """The difference, and what to do about it."""
    source: str
    job: str | None = None
    """The name of the job; None: the finding is about the file."""

    @property
    def is_loss(self) -> bool:
        """Whether something of the source is not in the job."""
        return self.code in LOSSES

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "loss": self.is_loss}

    @override
    def __str__(self) -> str:
        subject = f"{self.source}: {self.job}" if self.job else self.source
        return f"{subject}: {self.code}: {self.text}"
