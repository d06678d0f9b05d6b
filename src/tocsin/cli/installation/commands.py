"""`tocsin init`, `permissions`, `config show`, `history rebuild`, `version` and `tz refresh`."""

import asyncio
import json
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from ... import __version__, bootstrap
from ...domain.formats.document import listed, nearest
from ...domain.text import counted, utc_text
from ...engine.timezone_refresh import TimezoneReport
from ...ports import Projections
from ...settings import DEFAULT, described
from ...subjects import TIMEZONE_REPORT, TIMEZONE_REQUEST, Bucket
from ..input.values import Yes, confirm
from ..output.tables import print_table, table
from ..runtime.errors import Exit, UsageError
from ..runtime.session import Session, actor

if TYPE_CHECKING:
    from ...adapters.nats.admin.provision import Change


def init(
    session: Session,
    plan: Annotated[bool, typer.Option("--plan", help="Show the changes, and change nothing.")] = False,
    drop_messages: Annotated[
        bool, typer.Option("--drop-messages", help="Lower limits even if stored messages are removed.")
    ] = False,
) -> None:
    """Create or update the streams, buckets and consumers on NATS.

    Prints each change. A second call changes nothing. If lower limits in the settings would remove stored messages, the command changes
    nothing and fails with `messages-at-risk`.

    Example: `tocsin init --plan`
    """
    from ...adapters.nats.admin.provision import Mode  # noqa: PLC0415 - other commands do not need NATS

    mode = Mode.PLAN if plan else Mode.APPLY if drop_messages else Mode.KEEP_MESSAGES
    results = session.on_installation(
        lambda installation: session.backend.initialize(installation, mode), checked=False
    )
    changes = [result for result in results if result.action != "unchanged"]
    session.output.answer(
        [asdict(result) for result in results],
        lambda: [
            *(_line(change, is_plan=plan) for change in changes),
            Text(
                f"{len(changes)} {'to change' if plan else 'changed'}, {len(results) - len(changes)} unchanged",
                style="bold",
            ),
        ],
    )


def _line(change: "Change", *, is_plan: bool) -> Text:
    style = "red" if change.loss or change.warning else "green" if change.action == "created" else "yellow"
    return Text(change.line(is_plan=is_plan), style=style)


def permissions(
    session: Session,
    roles: Annotated[
        list[str] | None,
        typer.Argument(metavar="ROLE", help="Print these roles only, such as `planner worker`; default: all roles."),
    ] = None,
    account: Annotated[
        str, typer.Option(metavar="NAME", help="The name of the nats-server account with the streams.")
    ] = "TOCSIN",
) -> None:
    """Print nats-server accounts with least-privilege users for stages, workers, people and programs outside.

    Connects to no server: the rules follow from the settings and from the subjects that each stage declares.

    Example: `tocsin permissions > accounts.conf`
    """
    from ...adapters.nats.admin.accounts import server_accounts  # noqa: PLC0415 - only this command needs these
    from ...bootstrap.nats_roles import permissions as rules_by_role  # noqa: PLC0415
    from ...stages import STAGES  # noqa: PLC0415

    known = rules_by_role(session.settings())
    requested = [role.replace("_", "-") for role in roles or ()]
    uninstalled = {stage.user: stage.needs for stage in STAGES if stage.user not in known}
    for role in requested:
        if role in uninstalled:
            raise UsageError(
                f"Role `{role}` does not exist in this installation, because its stage needs {uninstalled[role]} in the settings. "
                "Set it, or name the settings file with --config.",
                code="unknown-role",
            )
        if role not in known:
            suggestion = nearest(role, known)
            hint = f"Did you mean `{suggestion}`?" if suggestion else f"The roles are {listed(known)}."
            raise UsageError(f"Role `{role}` does not exist. {hint}", code="unknown-role")
    selected = {name: rules for name, rules in known.items() if not requested or name in requested}
    session.output.answer(
        {
            name: {
                "account": account if rules.outside is None else f"{account}_{rules.outside.suffix}",
                "inbox_prefix": rules.inbox_prefix,
                "permissions": rules.as_server_config(),
            }
            for name, rules in selected.items()
        },
        lambda: [Text(server_accounts(account, selected).rstrip())],
    )


def show_config(session: Session) -> None:
    """Show every setting in force and its source; hide secrets.

    Example: `tocsin config show -o json`
    """
    document = described(session.settings())
    rows = (
        (name, setting["value"], Text(str(setting["origin"]), style="dim" if setting["origin"] == DEFAULT else "cyan"))
        for name, setting in document.items()
    )
    print_table(session.output, document, ("SETTING", "VALUE", "FROM"), rows, empty="")


def rebuild_history(session: Session, yes: Yes = False) -> None:
    """Empty the history and record it again from the first event.

    Lists are incomplete until the command ends.

    Example: `tocsin history rebuild --yes`
    """
    confirm("empty the history and rebuild it from the log?", yes=yes, otherwise="nothing was changed")
    executions = session.on_installation(bootstrap.rebuild_history)
    session.output.answer({"executions": executions}, lambda: [Text(f"{counted(executions, 'execution')} recorded")])


def version(session: Session) -> None:
    """Print the version of Tocsin; with -o json also the version of Python.

    Example: `tocsin version`
    """
    session.output.answer(
        {"tocsin": __version__, "python": platform.python_version()}, lambda: [Text(f"tocsin {__version__}")]
    )


_POLL_S: Final = 0.5


def refresh(
    session: Session,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the report of the leading ticker.")] = 30.0,
) -> None:
    """Let every process read its time-zone data again, and print the instants that moved.

    Upgrade the `tzdata` package where the processes run first. Nothing is restarted, and no instant is decided twice.

    Example: `pip install --upgrade tzdata && tocsin tz refresh`
    """
    report = session.on_installation(lambda installation: _requested(installation.projections, wait))
    session.output.answer(report.model_dump(mode="json"), lambda: [Text(_summary(report)), *_tables(report)])


async def _requested(projections: Projections, wait: float) -> TimezoneReport:
    body = {"at": utc_text(datetime.now(UTC)), "by": actor().identity, "tzdata": metadata.version("tzdata")}
    revision = await projections.put(Bucket.TIMEZONES, TIMEZONE_REQUEST, json.dumps(body).encode())
    for _ in range(max(1, round(wait / _POLL_S))):
        await asyncio.sleep(_POLL_S)
        entry = await projections.get(Bucket.TIMEZONES, TIMEZONE_REPORT)
        if entry and (report := TimezoneReport.model_validate_json(entry[0])).request >= revision:
            return report
    raise UsageError(
        f"No ticker reported within {wait:g} s. Processes that run later read the data that is installed then; run "
        "`tocsin status` to see whether a ticker leads.",
        Exit.UNREACHABLE,
        code="no-timezone-report",
    )


def _summary(report: TimezoneReport) -> str:
    if report.before == report.after:
        return (
            f"time-zone data {report.after or 'unknown'}, as before: no newer data is installed where the ticker runs"
        )
    return f"time-zone data {report.before} -> {report.after}: {counted(report.jobs, 'job')} moved in the next 400 days"


def _tables(report: TimezoneReport) -> list[RenderableType]:
    if not report.moved:
        return []
    rows = [(job.job, job.timezone, _shown(job.removed), job.error or _shown(job.added)) for job in report.moved]
    return [table(("JOB", "TIME ZONE", "NO LONGER", "INSTEAD"), rows, empty="")]


def _shown(instants: tuple[datetime, ...]) -> str:
    return ", ".join(utc_text(at, "seconds") for at in instants)
