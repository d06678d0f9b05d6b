"""`tocsin size`: what an installation needs."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from ...domain import duration
from ..output.tables import table
from ..runtime.session import session_of

if TYPE_CHECKING:
    from ...services.sizing import Estimate, Limits, Load
    from ...settings import Settings

_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_STEP: Final = 1_000
_MANY: Final = 1_000_000_000
_SERVERS: Final = 5
_MANY_CORES: Final = 10
_FEW_CORES: Final = 0.001


def size(  # noqa: PLR0913, PLR0917 - each is an option of the command
    context: typer.Context,
    jobs: Annotated[int, typer.Option(metavar="N", min=0, max=_MANY, help="Registered jobs.")],
    per_day: Annotated[int, typer.Option(metavar="N", min=0, max=_MANY, help="Executions a day, of all jobs.")],
    steps: Annotated[int, typer.Option(metavar="N", min=1, max=1_000, help="Steps of an execution.")] = 1,
    retention: Annotated[
        int | None,
        typer.Option(
            metavar="DAYS",
            min=1,
            max=36_500,
            help="Days for which history and archive are kept; default: `execution.history_retention_days`.",
        ),
    ] = None,
    input_bytes: Annotated[
        int, typer.Option(metavar="N", min=0, max=65_536, help="Size of the input of a job, as JSON.")
    ] = 0,
    result_bytes: Annotated[
        int, typer.Option(metavar="N", min=0, max=65_536, help="Size of the result of a step, as JSON.")
    ] = 0,
    open_tasks: Annotated[
        int, typer.Option(metavar="N", min=0, max=_MANY, help="Tasks that wait for a worker, or run, at a time.")
    ] = 1_000,
    replicas: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=_SERVERS, help="Servers that keep each stream; default: `replicas`, or 1."
        ),
    ] = None,
) -> None:
    """Estimate disk, memory and CPU for a number of jobs and executions.

    It also names the settings to change, and connects to no server. The figures are for scheduled executions with a lock that succeed, spread evenly over the day. They
    come from a measurement, whose date and versions are shown. Limits come from the settings in force.

    Example: `tocsin size --jobs 1000 --per-day 200000 --steps 3 --retention 30`
    """
    from ...services.sizing import Load, constants, estimate  # noqa: PLC0415 - only this command needs these

    session = session_of(context)
    settings = session.settings()
    load = Load(
        jobs=jobs,
        per_day=per_day,
        retention_days=retention or settings.execution.history_retention_days,
        steps=steps,
        input_bytes=input_bytes,
        result_bytes=result_bytes,
        open_tasks=open_tasks,
        replicas=replicas or settings.replicas or 1,
    )
    measured, limits = constants(), limits_of(settings)
    found = estimate(load, measured, limits)
    session.output.answer(
        {
            "load": asdict(load),
            "estimate": asdict(found),
            "settings": {change.split("`")[1]: change for change in _changes(found, limits, load)},
            "measured": measured.conditions.model_dump(),
        },
        lambda: [
            table(("WHAT", "SIZE", "PER"), _rows(load, found), empty=""),
            table(("STREAM", "MESSAGES", "BYTES", "MESSAGES HELD", "BYTES HELD"), _streams(found), empty=""),
            *(Text(change) for change in _changes(found, limits, load)),
            Text(
                f"Measured on {measured.conditions.date} with tocsin {measured.conditions.tocsin} and nats-server "
                f"{measured.conditions.nats_server}; CPU on {measured.conditions.cores} cores under a load of "
                f"{measured.conditions.load_average:g}.",
                style="dim",
            ),
        ],
    )


def limits_of(settings: "Settings") -> "Limits":
    """Return the settings that bound the streams."""
    from ...services.sizing import Limits  # noqa: PLC0415 - only this command needs it

    archive, triggers = settings.archive, settings.triggers
    captured = triggers.max_bytes if triggers.subjects else 0
    further = bool(triggers.webhooks) + bool(settings.bridged_queues)
    return Limits(
        hot_window_s=archive.hot_window,
        max_messages=archive.max_messages,
        max_input_bytes=archive.max_input_bytes,
        output_bytes=2 * settings.output.max_bytes
        + settings.notifications.max_bytes
        + captured
        + further * archive.max_input_bytes,
        is_archive_in_nats=archive.target == "nats",
        is_archived=archive.enabled,
    )


def _rows(load: "Load", found: "Estimate") -> Iterator[tuple[str, str, str]]:
    server = "server" if load.replicas == 1 else f"server, of {load.replicas}"
    yield "disk of NATS, used", _bytes(found.nats_disk), server
    yield "disk of NATS, at least `max_file_store`", _bytes(found.nats_reserved), server
    yield "memory of NATS", _bytes(found.nats_memory), server
    yield f"archive after {load.retention_days:g} days", _bytes(found.archive), "installation"
    yield f"history after {load.retention_days:g} days, SQLite", _bytes(found.sqlite), "installation"
    yield f"history after {load.retention_days:g} days, PostgreSQL", _bytes(found.postgresql), "installation"
    yield "memory of all stages", _bytes(found.stages_memory), "process"
    yield "cores, without handlers", _cores(found.cores), "installation"
    yield "executions stay in the streams for", duration.short(round(found.hot_s)), "execution"


def _streams(found: "Estimate") -> Iterator[tuple[str, str, str, str, str]]:
    for name, held in found.streams.items():
        each = found.execution.get(name)
        one = ("", "") if each is None else (f"{each.messages:g}", f"{each.bytes:,.0f}")
        yield name, *one, f"{held.messages:,.0f}", _bytes(held.bytes)


def _changes(found: "Estimate", limits: "Limits", load: "Load") -> Iterator[str]:
    """Yield what to change in the settings, each with the name of the setting first."""
    if not limits.is_archived:
        yield "`archive.enabled` is false: no execution leaves the streams, which grow without a limit. The figures are for an archiver."
    if found.max_messages > limits.max_messages:
        yield (
            f"`archive.max_messages` is {limits.max_messages:,}, so executions are archived after {duration.short(round(found.hot_s))}. "
            f"Set {found.max_messages:,} to keep them in the streams for {duration.short(limits.hot_window_s)}; the memory of NATS grows."
        )
    if found.is_input_limited:
        yield (
            f"`archive.max_input_bytes` is {limits.max_input_bytes:,}, so executions are archived when their reports fill half of "
            f"it. Set {found.max_input_bytes:,}, which each server reserves for each of three streams."
        )
    if found.sqlite > _LARGE:
        yield "`database.url`: use PostgreSQL for a history of this size."
    if limits.is_archive_in_nats and found.archive > found.nats_reserved / 2:
        yield "`archive.target`: most of the disk of NATS would be the archive. Use a folder or an object store."
    if load.replicas == 1:
        yield "`replicas` is 1: a lost disk loses the installation. Use 3 servers."


_LARGE: Final = 10_000_000_000


def _cores(cores: float) -> str:
    """Return a number of cores with two digits, without an exponent."""
    if cores >= _MANY_CORES:
        return f"{cores:,.0f}"
    return "less than 0.001" if 0 < cores < _FEW_CORES else f"{cores:.2g}"


def _bytes(number: float) -> str:
    """Return a size with a decimal unit and up to three digits."""
    for unit in _UNITS[:-1]:
        if number < _STEP:
            return f"{number:.3g} {unit}"
        number /= _STEP
    return f"{number:,.3g} {_UNITS[-1]}"
