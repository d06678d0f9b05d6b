"""`tocsin backup create`, `verify` and `restore`."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from .. import bootstrap
from ..domain.text import counted, printable
from .events.audit import report_page
from .input.values import Yes, confirm, length
from .output.format import local
from .runtime.errors import Exit
from .runtime.event_loop import run
from .runtime.session import Session

if TYPE_CHECKING:
    from ..adapters.nats.backup.folder import BackupManifest
    from ..adapters.nats.backup.verification import Verification
    from ..bootstrap import Installation

PLACES: Final = "a folder, `s3://BUCKET/NAME`, or `nats-object://BUCKET/NAME`"
Place = Annotated[str, typer.Argument(metavar="PLACE", help=f"The place of the backup: {PLACES}.")]


def create(
    session: Session,
    place: Annotated[str, typer.Argument(metavar="PLACE", help=f"A place where nothing is yet: {PLACES}.")],
) -> None:
    """Copy the streams, buckets and archive of a running installation to a new place.

    Stages and workers run on meanwhile. A folder gets its name when all of it is on the disk, and other places get the manifest last. A backup holds the installation's key: keep it
    as safe as NATS. It needs NATS and its user `backup`: an HTTP API (`--server`) has no such operation. Other places need room for all files in `TMPDIR`.

    Example: `tocsin backup create /backups/2026-11-26`
    """
    from ..bootstrap.backups import backup_place  # noqa: PLC0415 - only these commands need it

    target = backup_place(place)
    manifest = session.on_installation(lambda installation: bootstrap.create_backup(installation, target))
    session.output.answer(
        {"place": place, **summary(manifest)},
        lambda: [Text(f"{_described(manifest)} written to {place}", style="bold")],
    )


def verify(
    session: Session,
    place: Place,
    patience: Annotated[
        str, typer.Option(metavar="TIME", help="A stage that owed a decision for longer is a violation.")
    ] = "10m",
) -> None:
    """Read a whole backup without the installation, and audit its log.

    Compares the digest of each file, and the number and order of the messages. Exits with 1 if a file is not as it was written, or if the log breaks an invariant.

    Example: `tocsin backup verify /backups/2026-11-26`
    """
    from ..bootstrap.backups import backup_place, verify_backup_at  # noqa: PLC0415 - only these commands need it

    source = backup_place(place)
    verification = run(verify_backup_at(session.settings(), source, patience=length(patience, "--patience")))
    session.output.answer(
        {
            "place": place,
            **summary(verification.manifest),
            "clean": verification.is_clean,
            "damage": [{"file": damage.file, "reason": damage.reason} for damage in verification.damage],
            "audit": None if verification.audit is None else verification.audit.as_json(),
        },
        lambda: _page(verification),
    )
    if not verification.is_clean:
        raise typer.Exit(Exit.NO)


def restore(
    session: Session,
    place: Place,
    history: Annotated[
        bool, typer.Option("--history/--no-history", help="Record the history again from the restored log.")
    ] = True,
    yes: Yes = False,
) -> None:
    """Restore a backup into a NATS without streams of this installation.

    Stop all stages, workers and APIs before, and start them afterwards. Streams get the replicas and limits of the settings. Missed
    instants are then caught up as each job says. It needs NATS and its user `restore`: an HTTP API (`--server`) has no such operation.

    Example: `tocsin backup restore /backups/2026-11-26 --yes`
    """
    from ..bootstrap.backups import backup_place, settings_digest  # noqa: PLC0415 - only these commands need it

    source = backup_place(place)
    also = " and record the history again" if history else ""
    confirm(f"restore {place}{also}?", yes=yes, otherwise="nothing was restored")

    async def copy(installation: "Installation") -> "tuple[BackupManifest, int | None]":
        manifest = await bootstrap.restore_backup(installation, source)
        return manifest, await bootstrap.rebuild_history(installation) if history else None

    manifest, executions = session.on_installation(copy, checked=False)
    is_as_before = settings_digest(session.settings()) == manifest.settings
    recorded = "" if executions is None else f"; {counted(executions, 'execution')} recorded"
    session.output.answer(
        {"place": place, **summary(manifest), "executions": executions, "settings_differ": not is_as_before},
        lambda: [
            Text(f"{_described(manifest)} restored{recorded}", style="bold"),
            *([] if is_as_before else [Text("the settings differ from those of the backup", style="yellow")]),
        ],
    )


def summary(manifest: "BackupManifest") -> dict[str, Any]:
    """Return the content of a backup as JSON, without its durables."""
    data: dict[str, Any] = manifest.model_dump(
        mode="json", include={"version", "nats_server", "time", "installation", "root", "settings"}
    )
    streams = {
        name: record.model_dump(include={"first", "last", "messages"}) for name, record in manifest.streams.items()
    }
    return data | {"streams": streams, "objects": len(manifest.objects), "bytes": _size(manifest)}


def _size(manifest: "BackupManifest") -> int:
    return sum(record.size for _, record in manifest.files())


def _described(manifest: "BackupManifest") -> str:
    messages = sum(record.messages for record in manifest.streams.values())
    return (
        f"backup of {local(manifest.time)}: {counted(messages, 'message')} in {counted(len(manifest.streams), 'stream')}, "
        f"{counted(len(manifest.objects), 'archived object')}, {_size(manifest):,} bytes,"
    )


def _page(verification: "Verification") -> list[RenderableType]:
    page: list[RenderableType] = [
        Text(f"{printable(damage.file)}: {printable(damage.reason)}", style="red") for damage in verification.damage
    ]
    if verification.audit is None:
        return [*page, Text("damaged; the log was not audited", style="bold red")]
    return [Text(f"{_described(verification.manifest)} as it was written"), *report_page(verification.audit)]
