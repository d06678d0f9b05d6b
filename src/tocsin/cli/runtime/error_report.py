"""The report of a failure: a message, an exit code and a stable error code."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeAlias

import typer

from ...adapters.extras import ExtraNotInstalled, extra_of
from ...domain.commit import UnknownFormat
from ...domain.definition import DefinitionError, DefinitionProblem
from ...domain.errors import TocsinError
from ...domain.ledger import JobNotFound
from ...domain.namespaces import WrongNamespaces
from ...domain.schedule import ScheduleError
from ...domain.shard_map import WrongShardMap
from ...domain.statement_error import StatementError
from ...ports import (
    ApiUnavailable,
    ArchiveUnavailable,
    ChannelRefused,
    HistoryUnavailable,
    LogUnavailable,
    NotPermitted,
    OutdatedState,
    Unreachable,
)
from ...ports.errors import StoreUnavailable
from ...ports.queries import InvalidQuery
from ...services.operations.errors import Ambiguous, NotAnId, NotFound, NotServed, OperationError
from ...settings import SettingsError
from ...subjects import DecodeError
from .errors import Exit, Interrupted, UsageError

_DATABASE: Final = "database-error"
OTHER_CODES: Final[Mapping[str, str]] = {
    _DATABASE: "A database does not answer, or refuses a statement.",
    TocsinError.code: "An unexpected error.",
}
"""The meaning of each code of an error that is no `TocsinError`."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure as the program reports it. `problems` lists its parts if it has several."""

    code: Exit
    message: str
    problems: tuple[DefinitionProblem, ...] = ()
    error_code: str = TocsinError.code
    """The stable code of the exception; the message may change."""

    def as_json(self) -> dict[str, Any]:
        """Return the error object of `--output json`."""
        error: dict[str, Any] = {
            "code": self.code.value,
            "kind": self.code.name.lower(),
            "error_code": self.error_code,
            "message": self.message,
        }
        if self.problems:
            error["problems"] = [str(problem) for problem in self.problems]
        return {"error": error}


def failure_of(error: BaseException) -> Failure:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]  # the first failure cancelled the others
    if isinstance(error, UsageError):
        return Failure(error.exit_code, str(error), error_code=error.code)
    for kinds, code, text in chain(_KNOWN, _of_the_outside()):
        if isinstance(error, kinds):
            problems = error.problems if isinstance(error, SettingsError | DefinitionError) else ()
            return Failure(code, text.format(_reason(error)), problems, _code_of(error))
    if isinstance(error, ImportError) and (extra := extra_of(error)):
        missing = ExtraNotInstalled("This command", extra)
        return Failure(Exit.USAGE, str(missing), error_code=missing.code)
    return Failure(Exit.UNFORESEEN, f"{type(error).__name__}: {error}")


def _code_of(error: BaseException) -> str:
    """Return the stable code of an exception; the exceptions of libraries have one here."""
    if isinstance(error, TocsinError):
        return error.code
    if isinstance(error, typer.TyperException):
        return UsageError.code
    return Interrupted.code if isinstance(error, KeyboardInterrupt | typer.Abort) else _DATABASE


_Row: TypeAlias = tuple[tuple[type[BaseException], ...], Exit, str]

_KNOWN: Final[tuple[_Row, ...]] = (
    ((Interrupted, KeyboardInterrupt), Exit.INTERRUPTED, "interrupted"),
    ((typer.Abort,), Exit.INTERRUPTED, "aborted"),
    ((typer.TyperException, SettingsError, DefinitionError, ScheduleError, StatementError), Exit.USAGE, "{}"),
    (
        (WrongShardMap, WrongNamespaces, NotAnId, Ambiguous, NotServed, ExtraNotInstalled, InvalidQuery),
        Exit.USAGE,
        "{}",
    ),
    ((JobNotFound, NotFound), Exit.NOT_FOUND, "{}"),
    ((OperationError, ChannelRefused, NotPermitted, OutdatedState), Exit.NO, "{}"),
    ((ApiUnavailable, HistoryUnavailable), Exit.UNREACHABLE, "{}"),
    ((ArchiveUnavailable,), Exit.UNREACHABLE, "{}; check `archive.target`, `archive.s3` and the credentials"),
    ((LogUnavailable,), Exit.UNREACHABLE, "the log cannot be reached: {}; check that NATS runs and has a quorum"),
    ((UnknownFormat,), Exit.OUTDATED, "{}"),
    ((DecodeError,), Exit.UNFORESEEN, "this version of Tocsin cannot read an event of the log: {}; upgrade Tocsin"),
)


def _of_the_outside() -> Iterator[_Row]:
    """Yield the errors of modules that only some commands import, for a fast start."""
    from ...adapters.http.sockets import PortInUseError  # noqa: PLC0415
    from ...adapters.nats.admin.provision_errors import MessagesAtRisk, ProvisionError  # noqa: PLC0415
    from ...adapters.nats.backup.errors import (  # noqa: PLC0415
        BackupDamaged,
        BackupError,
        InstallationNotEmpty,
        TransferFailed,
    )
    from ...adapters.nats.client.wire import JetStreamError  # noqa: PLC0415
    from ...adapters.nats.server.process import PortTakenError, ServerStartError, StoreInUseError  # noqa: PLC0415
    from ...archive.checkpoints import CheckpointDamaged  # noqa: PLC0415
    from ...archive.log_archive import ArchiveDamaged  # noqa: PLC0415
    from ...archive.signing_keys import KeyRefused  # noqa: PLC0415
    from ...services.support_bundle import BundleExists  # noqa: PLC0415

    yield (ArchiveDamaged, CheckpointDamaged, BackupDamaged, InstallationNotEmpty), Exit.NO, "{}"
    yield (StoreUnavailable,), Exit.UNREACHABLE, "{}; check the address, the settings `backup` and the credentials"
    yield (TransferFailed,), Exit.UNREACHABLE, "{}"
    yield (BackupError, KeyRefused), Exit.USAGE, "{}"
    yield (Unreachable,), Exit.UNREACHABLE, "{}"
    yield (MessagesAtRisk, BundleExists), Exit.USAGE, "{}"
    yield (ProvisionError, PortTakenError, PortInUseError, StoreInUseError, ServerStartError), Exit.UNREACHABLE, "{}"
    yield (JetStreamError,), Exit.UNREACHABLE, "NATS refused: {}"
    if "tocsin.app" in sys.modules:  # few commands import an application
        from ...app import AppError  # noqa: PLC0415

        yield (AppError,), Exit.USAGE, "{}"
    if "sqlalchemy" in sys.modules:  # sqlalchemy belongs to an extra and may not be installed
        from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

        yield (SQLAlchemyError,), Exit.UNREACHABLE, "the history cannot be used: {}; check `database.url`"


def _reason(error: BaseException) -> str:
    if getattr(error, "option_name", None) == "-o":
        return "`-o` takes the format of answers here, table or json: only commands with --out read `-o FILE`"
    if isinstance(error, typer.TyperException):
        return error.format_message().replace("Value error, ", "").replace("Input should be", "it must be")
    # The errors of a database hold the statement and a link after the line with the reason.
    original = getattr(error, "orig", None)
    return str(original).splitlines()[0] if original else str(error)
