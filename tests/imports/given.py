"""Imports of texts, and an independent reading of their schedules."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from croniter import croniter

from tocsin.adapters.files import load
from tocsin.adapters.imports import JobFile, Kind, import_files
from tocsin.domain.definition import DefinitionError, JobDefinition
from tocsin.domain.schedule import next_instants, parse

SAMPLES = Path(__file__).parent / "samples"
NOW = datetime(2026, 3, 27, 12, 0, tzinfo=UTC)
"""Two days before the clocks of Europe change."""


def imported(
    kind: Kind, text: str | bytes, folder: Path, *, timezone: str | None = "UTC", is_system: bool | None = None
) -> tuple[JobFile, dict[str, JobDefinition]]:
    """Import a text; return the file, and its jobs as `jobs apply` reads them."""
    source = folder / "source"
    source.write_bytes(text.encode() if isinstance(text, str) else text)
    written = import_files(kind, [str(source)], now=NOW, timezone=timezone, is_system=is_system)
    return written, registrable(written, folder)


def refused(kind: Kind, text: str, folder: Path) -> set[str]:
    """Return the codes with which a text is refused; none: it is imported."""
    try:
        imported(kind, text, folder)
    except DefinitionError as error:
        return {problem.code for problem in error.problems}
    return set()


def registrable(written: JobFile, folder: Path) -> dict[str, JobDefinition]:
    """Return the jobs of a file as `jobs apply` reads them."""
    path = folder / "jobs.yaml"
    path.write_text(written.text, "utf-8")
    jobs = {definition.name: definition for definition in load(path)}
    assert tuple(jobs) == written.jobs
    return jobs


def codes(written: JobFile, job: str | None = None) -> set[str]:
    """Return the codes of the findings of a job; None: of all."""
    return {finding.code for finding in written.findings if job is None or finding.job == job}


def instants(job: JobDefinition, n: int = 50, after: datetime = NOW) -> list[datetime]:
    """Return the next instants of a job."""
    assert job.schedule is not None
    return next_instants(parse(job.schedule, job.timezone, dst=job.dst), after, n)


def vixie(expression: str, timezone: str, n: int = 50, after: datetime = NOW) -> list[datetime]:
    """Return the next instants of cron, by croniter's reading of the wall clock.

    An entry with `*` in its minute or hour follows the clocks. A fixed time runs once when the clocks repeat it; if they skip it, it
    runs afterwards, here by the amount of the change later.
    """
    minute, hour, *_ = expression.split()
    is_wild = minute.startswith("*") or hour.startswith("*")
    return _instants(expression, timezone, n, after, is_wild=is_wild, is_vixie=True)


def robfig(expression: str, timezone: str, n: int = 50, after: datetime = NOW) -> list[datetime]:
    """Return the next instants of robfig/cron: each instant whose wall time matches."""
    return _instants(expression, timezone, n, after, is_wild=True, is_vixie=False)


def _instants(
    expression: str, timezone: str, n: int, after: datetime, *, is_wild: bool, is_vixie: bool
) -> list[datetime]:
    zone, found = ZoneInfo(timezone), set[datetime]()
    start = after.astimezone(zone).replace(tzinfo=None) - timedelta(days=1)
    walls = croniter(expression, start, ret_type=datetime, implement_cron_bug=is_vixie, max_years_between_matches=50)
    for _ in range(n * 2 + 1_500):
        wall = walls.get_next()
        both = [wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)]
        shown = sorted({at for at in both if at.astimezone(zone).replace(tzinfo=None) == wall})
        found.update(shown if is_wild else shown[:1] or both[:1])
        if len(found) > n + 1_500 or (len(found) > n + 30 and max(found) - after > timedelta(days=30)):
            break
    return sorted(at for at in found if at > after)[:n]
