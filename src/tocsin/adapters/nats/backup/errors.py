"""The errors of backups."""

from ....domain.errors import TocsinError


class BackupError(TocsinError):
    """A backup cannot be made, read or restored."""

    code = "backup-refused"


class BackupExists(BackupError):
    """There is something at the path of a new backup already."""

    code = "backup-exists"


class BackupPlaceInvalid(BackupError):
    """The place of a backup is no folder and no known URL."""

    code = "backup-place-invalid"


class BackupUnreadable(BackupError):
    """A folder is not a backup that this version can read."""

    code = "backup-unreadable"


class BackupUnwritable(BackupError):
    """The folder of a new backup cannot be written."""

    code = "backup-unwritable"


class BackupDamaged(BackupError):
    """A file of a backup changed after it was written."""

    code = "backup-damaged"


class BackupOfOtherNames(BackupError):
    """A backup has other subjects or streams than the settings."""

    code = "backup-names-differ"


class InstallationNotEmpty(BackupError):
    """The target of a restore has streams already; `streams` names them."""

    code = "installation-not-empty"

    def __init__(self, message: str, *, streams: tuple[str, ...]) -> None:
        super().__init__(message)
        self.streams = streams


class TransferFailed(BackupError):
    """A snapshot of a stream could not be taken or restored."""

    code = "backup-transfer-failed"
