"""The exit codes, and the errors that commands raise."""

from collections.abc import Mapping
from enum import IntEnum
from typing import ClassVar, Final

from ...domain.errors import TocsinError
from ...domain.ids import is_execution_id

USAGE_CODES: Final[Mapping[str, str]] = {
    "app-import-failed": "The module of an application cannot be imported.",
    "app-not-found": "An application is in no Python file, or its module does not have it.",
    "channel-not-found": "The settings have no channel of this name.",
    "confirmation-required": "A command has to be confirmed, and stdin is not a terminal.",
    "conflicting-options": "Two options contradict each other, or an option has no effect here.",
    "declined": "The user declined to confirm.",
    "definitions-required": "Neither the command line nor the settings name a file of definitions.",
    "duration-out-of-range": "A duration is outside its limits.",
    "exclusive-options": "Of several options, none or more than one is given.",
    "execution-not-found": "No execution with this id existed at that time.",
    "fields-required": "A change of the policy names no field.",
    "invalid-capacity": "The number of slots of a queue cannot be read.",
    "invalid-event": "An event to try a trigger with is wrong.",
    "invalid-execution-id": "A text cannot be the id of an execution.",
    "invalid-field": "A field of the policy has no value, or is given twice.",
    "invalid-function": "The name of a function is empty.",
    "invalid-json": "An option is not JSON, or has another type.",
    "invalid-queue": "A name cannot be that of a queue for workers over HTTP.",
    "invalid-rate": "A rate cannot be read, or is outside its limits.",
    "invalid-secret-name": "A name cannot be that of a secret.",
    "invalid-server-url": "The URL of an API has no scheme.",
    "invalid-time": "A time cannot be read.",
    "invalid-value": "A queue or the name of a worker is not allowed.",
    "job-not-found": "The job does not exist.",
    "job-not-in-export": "An export holds the events of another job only.",
    "key-exists": "A new key would replace a file.",
    "monitor-not-supported": "A command over HTTP cannot read the monitoring of nats-server.",
    "namespace-not-declared": "A token is to be bound to a namespace that is not declared.",
    "namespace-not-found": "The namespace is not declared.",
    "no-schedule": "The job has no schedule.",
    "no-timezone-report": "No ticker has reported its time zone data in time.",
    "not-a-terminal": "A command needs a terminal.",
    "not-a-worker": "An object is not a worker.",
    "not-an-app": "An object is not an application.",
    "one-revision": "A job has a single definition, so there is nothing to compare.",
    "output-closed": "The reader of the output closed the pipe, so the output is incomplete.",
    "outside-namespace": "A queue is outside the namespaces of a token.",
    "partial-export": "A verification needs the whole log, and an export holds a part of it.",
    "role-not-bound": "A token for workers names no queue, or a token without that role names one.",
    "server-not-supported": "The command does not work over HTTP.",
    "stage-required": "Neither stages nor `--all` are named, or both are.",
    "statement-missing": "Neither a statement nor a file is named.",
    "stream-missing": "An export lacks a stream that an audit needs.",
    "token-not-found": "No token has this id.",
    "unknown-builtin": "A built-in function does not exist.",
    "unknown-role": "A role does not exist, or its stage is not in use.",
    "unknown-stage": "A stage does not exist.",
    "unreadable-file": "A file cannot be read.",
    "unwritable-file": "A file cannot be written.",
    "usage": "An argument or an option of a command is wrong.",
    "worker-import-failed": "The module of a worker cannot be imported.",
    "worker-not-found": "A worker is in no Python file, or its module does not have it.",
    "worker-required": "Neither a worker nor a built-in function is named.",
}
"""The meaning of each code of a `UsageError`."""


class Exit(IntEnum):
    """The exit codes of the program, which scripts may rely on."""

    OK = 0
    NO = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    INTERRUPTED = 5
    UNFORESEEN = 6
    OUTDATED = 7


MEANINGS: Final = {
    Exit.OK: "success, or the answer is yes",
    Exit.NO: "the answer is no: differences or violations exist, or the user declined",
    Exit.USAGE: "the command, a setting, a file or a definition is invalid",
    Exit.NOT_FOUND: "the job, execution, dead letter or token does not exist",
    Exit.UNREACHABLE: "NATS or the database is unreachable or not initialized",
    Exit.INTERRUPTED: "interrupted before the command finished",
    Exit.UNFORESEEN: "unexpected error; --log-level debug shows the traceback",
    Exit.OUTDATED: "a newer version stored what this version cannot read: upgrade it",
}

HELP: Final = "Exit codes: " + " · ".join(f"{code.value} {meaning}" for code, meaning in MEANINGS.items())


class UsageError(TocsinError):
    """A command cannot do its work. Each kind of failure has its own `code`."""

    code = "usage"
    codes: ClassVar[Mapping[str, str]] = USAGE_CODES

    def __init__(self, message: str, exit_code: Exit = Exit.USAGE, *, code: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.code = code


class Interrupted(TocsinError):
    """A signal arrived before the command finished."""

    code = "interrupted"


def no_such_job(job: str, known: list[str]) -> UsageError:
    """Return the error for an unknown job; it suggests the nearest name."""
    if is_execution_id(job):
        return UsageError(
            f"{job} is an execution's id, but this command needs a job's name: run `tocsin executions show {job}`",
            Exit.NOT_FOUND,
            code="job-not-found",
        )
    from ...domain.formats.document import nearest  # noqa: PLC0415 - only this failure needs it

    suggestion = nearest(job, known)
    hint = f", did you mean {suggestion!r}?" if suggestion else ": run `tocsin jobs list` to see all jobs"
    return UsageError(f"job {job!r} does not exist{hint}", Exit.NOT_FOUND, code="job-not-found")
