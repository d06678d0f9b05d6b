"""`tocsin status`, `tocsin doctor` and `tocsin stats`."""

import asyncio
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from ... import bootstrap
from ...bootstrap.operators import recorded_history, status_of
from ...domain.text import counted, printable
from ...engine.stage_leases import lease_of
from ...services.health import Finding, Status, examine
from ...services.health.status import as_json, problems_of
from ...services.overview import Statistics, statistics
from ..input.values import instant
from ..output.format import local, seconds
from ..output.tables import table
from ..runtime.errors import Exit, UsageError
from ..runtime.event_loop import run, serve
from ..runtime.session import Session

if TYPE_CHECKING:
    from ...bootstrap import Installation
    from ...domain.agent import WorkerKind
    from ...ports.server_inspection import StreamState
    from ...services.health.coordination import Lease

_WORKERS: Final[dict["WorkerKind", str]] = {"agent": "agent", "http": "HTTP worker", "mq": "MQ executor"}
MAX_FUNCTIONS: Final = 5
"""The functions with waiting tasks that are shown for a queue."""


def status(
    session: Session,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two refreshes.")] = 2.0,
) -> None:
    """Show servers, streams, leaders, backlog and active consumers.

    Also counts the shards of the map, the events that wait for triggers, and the executions that agents have yet to acknowledge. Names each part that cannot be read, and shows the rest.

    Example: `tocsin status --watch --interval 5`
    """
    if watch:
        serve(_watch(session, interval))
        return
    snapshot = session.on_installation(status_of, checked=False)
    session.output.answer(as_json(snapshot), lambda: shown(snapshot))


async def _watch(session: Session, interval: float) -> None:
    output, has_screen = session.output, not session.output.is_json and session.output.width is not None
    async with session.backend.connect(session.settings()) as installation:
        with Live(console=output.console(), screen=True, auto_refresh=False) if has_screen else nullcontext() as live:
            while True:
                snapshot = await status_of(installation)
                if live is None:
                    output.line(as_json(snapshot), Text(f"{snapshot.at:%H:%M:%S}  {', '.join(_sums(snapshot))}"))
                else:
                    live.update(Group(*shown(snapshot)), refresh=True)
                await asyncio.sleep(interval)


def shown(seen: Status) -> Iterator[RenderableType]:
    server = seen.server
    where = f" in cluster {server.cluster} of {len(server.known)}" if server.cluster and server.known else ""
    yield Text.assemble((f"{seen.root}", "bold"), f" on nats-server {server.version} at {server.url}{where}")
    yield Text()
    yield table(
        ("STREAM", "MESSAGES", "BYTES", "SUBJECTS", "REPLICAS", "LEADER"),
        [
            _stream(name, stream)
            for name, stream in seen.streams.items()
            if not name.startswith("KV_") or stream is None
        ],
        empty="no stream answers",
        least=("SUBJECTS", "LEADER"),
    )
    if seen.leases is not None:
        yield Text()
        yield table(
            ("LEASE", "HOLDER", "RENEWED", "ENDS", "CLOCK"),
            [
                (lease.name, lease.holder, f"{_age(seen, lease.renewed_at)} ago", _end(seen, lease), _clock(lease))
                for lease in seen.leases
            ],
            empty="no leader",
        )
    if seen.processes:
        yield Text()
        yield table(
            ("PROCESS", "LEADS", "EVENT", "TAKEN", "READ", "SHOWN"),
            [
                (
                    process.name,
                    ", ".join(map(lease_of, process.led)),
                    process.number,
                    process.floor if process.stages else "",
                    ", ".join(f"{source} {place.seen}" for source, place in sorted(process.streams.items())),
                    f"{_age(seen, process.at)} ago",
                )
                for process in seen.processes
            ],
            empty="no process reads the log",
            least=("READ", "SHOWN"),
        )
    yield Text()
    yield table(
        ("DURABLE", "OWNER", "WAITING", "OUT", "AGAIN", "OLDEST", "READERS"),
        [
            (
                durable.state.name,
                durable.owner,
                durable.state.pending,
                durable.state.ack_pending,
                durable.state.redelivered,
                "" if durable.oldest is None else _age(seen, durable.oldest),
                durable.state.readers or Text("0", style="red" if durable.state.pending else ""),
            )
            for durable in seen.durables
        ],
        empty="no durables",
        least=("AGAIN", "OWNER", "OUT"),
    )
    yield Text()
    yield from (Text(line) for line in _sums(seen))
    for queue in seen.queues:
        if queue.functions and not queue.is_unattended:
            first = sorted(queue.functions.items(), key=lambda item: (-item[1], item[0]))[:MAX_FUNCTIONS]
            shown = ", ".join(f"{printable(function)} {number}" for function, number in first)
            age = "" if queue.oldest is None else f", the oldest for {_age(seen, queue.oldest)}"
            verb = "waits" if queue.waiting == 1 else "wait"
            yield Text(f"{counted(queue.waiting, 'task')} in queue `{queue.name}` {verb} for an agent{age}: {shown}")
    yield from (Text(problem, style="red") for problem in problems_of(seen))


def _end(seen: Status, lease: "Lease") -> str:
    return "" if lease.ends_at is None else f"in {seconds(max(0.0, (lease.ends_at - seen.at).total_seconds()))}"


def _clock(lease: "Lease") -> Text:
    if lease.clock_offset is None or lease.clock_error is None:
        return Text("unknown")
    shown = f"{lease.clock_offset:+.3f} s ±{lease.clock_error:.3f}"
    return Text(shown, style="red" if lease.is_last_resort else "")


def _sums(seen: Status) -> Iterator[str]:
    if seen.jobs is not None:
        yield f"{counted(seen.jobs.registered, 'job')}, {seen.jobs.paused} paused, {seen.jobs.disabled} disabled"
    for kind, noun in _WORKERS.items():
        if numbers := seen.agents if kind == "agent" else seen.outside_workers.get(kind):
            states = ", ".join(f"{number} {state.lower()}" for state, number in numbers.items())
            yield f"{counted(sum(numbers.values()), noun)}: {states}"
    if (shards := seen.shards) is not None and (number := shards.active + shards.draining + shards.disabled):
        lost = "" if shards.without_owner is None else f", {shards.without_owner} without an owner"
        states = f"{shards.active} active, {shards.draining} draining, {shards.disabled} disabled"
        yield f"{counted(number, 'shard')}: {states}{lost}, {shards.free} free for any worker"
    if seen.proposals is not None and seen.proposals.waiting:
        more = "" if seen.proposals.is_complete else "at least "
        age = "" if seen.proposals.oldest is None else f", the oldest for {_age(seen, seen.proposals.oldest)}"
        yield f"{more}{counted(seen.proposals.waiting, 'execution')} proposed to agents{age}"
    if seen.waiting_events:
        trigger, number = max(seen.waiting_events.items(), key=lambda item: item[1])
        total = sum(seen.waiting_events.values())
        most = "" if len(seen.waiting_events) == 1 else f", {number:,} of them"
        yield f"{counted(total, 'event')} {'waits' if total == 1 else 'wait'} in streams of programs{most} for {trigger}"
    if seen.history is not None:
        lag = "up to date"
        if seen.history.since is not None:
            lag = f"{_age(seen, seen.history.since)} behind"
        if not seen.history.place and seen.history.since is not None:
            yield "nothing of this installation is recorded in the history that this command reads"
        else:
            yield f"{counted(seen.history.open, 'execution')} open; the history is {lag} ({seen.history.place})"


def _age(seen: Status, since: datetime) -> str:
    return seconds(max(0.0, (seen.at - since).total_seconds()))


def _stream(name: str, stream: "StreamState | None") -> tuple[object, ...]:
    if stream is None:
        return name, Text("missing", style="red"), "", "", "", ""
    current = sum(peer.is_current and not peer.is_offline for peer in stream.peers) + 1
    replicas = Text(f"{current} of {stream.replicas}", style="" if current == stream.replicas else "red")
    return (
        name,
        f"{stream.messages:,}",
        _size(stream.bytes),
        f"{stream.subjects:,}",
        replicas,
        (stream.leader or "none") if stream.replicas > 1 else "",
    )


def _size(number: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:  # noqa: PLR2004 - the step between two units
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"


_MARKS = {"ok": ("ok  ", "green"), "warn": ("warn", "yellow"), "bad": ("bad ", "bold red")}


def doctor(
    session: Session,
    monitor: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="A server's monitoring endpoint, such as http://nats-1:8222; repeatable."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print warnings and problems only.")] = False,
) -> None:
    """Check the installation; explain each finding and its remedy.

    Exits with 1 if a finding is bad.

    Example: `tocsin doctor --monitor http://nats-1:8222 --monitor http://nats-2:8222`
    """
    findings = run(_examine(session, monitor or []))
    printed = [finding for finding in findings if not quiet or finding.level != "ok"]
    session.output.answer([asdict(finding) for finding in printed], lambda: _finding_lines(printed, findings))
    if any(finding.level == "bad" for finding in findings):
        raise typer.Exit(Exit.NO)


async def _examine(session: Session, monitors: list[str]) -> list[Finding]:
    if session.server:
        if monitors:
            raise UsageError(
                "--monitor does not work over HTTP: the API requests no address that a caller names. Omit --server and use "
                "--nats URL, or omit --monitor.",
                code="monitor-not-supported",
            )
        async with session.administration() as remote:
            return list(await remote.examine())
    async with session.backend.connect(session.settings()) as installation:
        return await examine(bootstrap.health_target(installation), monitors)


def _finding_lines(printed: list[Finding], findings: list[Finding]) -> "Iterator[Text]":
    for finding in printed:
        mark, style = _MARKS[finding.level]
        yield Text.assemble((mark, style), "  ", finding.what, (f"  [{finding.code}]", "dim"))
        if finding.means:
            yield Text(f"      {finding.means}")
        if finding.do:
            yield Text.assemble(("      → ", style), finding.do)
    counts = {level: sum(finding.level == level for finding in findings) for level in _MARKS}
    yield Text(", ".join(f"{number} {level}" for level, number in counts.items()), style="bold")


def stats(
    session: Session,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Count from this time: a date, a time, or an age such as 24h.")
    ] = "24h",
    job: Annotated[str | None, typer.Option(metavar="JOB", help="Count only this job.")] = None,
) -> None:
    """Count the executions that were handed over, lost and recovered.

    Counts the executions that were scheduled after `--since` and their recoveries, as far as the history has them. An execution is handed over when an executor claims it or, on a queue with external executors, reports on it;
    its later success or failure does not matter. Executions that were skipped, or cancelled before they were handed over, do not count.

    Example: `tocsin stats --since 7d`
    """
    begin = instant(since, "--since", now=datetime.now(UTC))

    async def count(installation: "Installation") -> Statistics:
        async with recorded_history(installation) as history:
            return await statistics(history.summaries, since=begin, now=await installation.log.now(), job=job)

    counts = session.on_installation(count)
    session.output.answer(asdict(counts), lambda: _page(counts))


def _page(counts: Statistics) -> list[RenderableType]:
    executions, recoveries = counts.executions, counts.recoveries
    head = Text(f"from {local(counts.since)} to {local(counts.until)}", style="dim")
    execution_rows = [
        ("started", executions.total_executions),
        ("handed over", executions.successful_executions),
        ("lost", executions.lost_executions),
        ("pending", executions.pending_executions),
        ("handed over, of those decided", _rate(executions.success_rate)),
    ]
    recovery_rows = [
        ("tried", recoveries.total_recovery_attempts),
        ("successful", recoveries.successful_recoveries),
        ("failed", recoveries.failed_recoveries),
        ("executions abandoned", recoveries.abandoned_recoveries),
        ("successful, of those decided", _rate(recoveries.recovery_success_rate)),
    ]
    return [
        head,
        Text(),
        table(("EXECUTIONS", ""), execution_rows, empty=""),
        Text(),
        table(("RECOVERIES", ""), recovery_rows, empty=""),
    ]


def _rate(percentage: float | None) -> str:
    return "–" if percentage is None else f"{percentage:.2f} %"
