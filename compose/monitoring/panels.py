"""The panels of the dashboards: what each shows, and the expressions for it.

Copies of the API export equal numbers of the installation, hence `max without (instance)`. Numbers of processes are summed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["stat", "timeseries", "bargauge"]

_COPIES: Final = "max without (instance)"
_HIP: Final = "hanzo_scheduler"
_SECONDS: Final = {"1h": 3_600, "24h": 86_400}
"""The windows over which totals of jobs grow."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel; `expressions` by their legends."""

    title: str
    expressions: Mapping[str, str]
    kind: Kind = "timeseries"
    unit: str = "short"
    description: str = ""
    names_job: bool = False
    """Each value has the label `job` and links to the dashboard of that job."""

    @property
    def size(self) -> tuple[int, int]:
        """The width and height on the grid, which has 24 columns."""
        return (4, 4) if self.kind == "stat" else (12, 8)


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of a dashboard, from the values of a label."""

    name: str
    label: str
    metric: str
    is_multiple: bool = False


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard: rows of panels by their headings."""

    uid: str
    title: str
    description: str
    rows: Mapping[str, tuple[Panel, ...]]
    variables: tuple[Variable, ...] = ()

    @property
    def panels(self) -> Iterator[Panel]:
        """All panels."""
        return (panel for row in self.rows.values() for panel in row)


def _stat(title: str, expression: str, unit: str = "short", description: str = "") -> Panel:
    return Panel(title, {"": expression}, "stat", unit, description)


def _rate(metric: str, labels: str = "") -> str:
    return f"{_COPIES} (rate({metric}{labels}[5m]))"


def _growth(metric: str, labels: str, window: str) -> str:
    """Return by how much a total of the installation grew.

    `increase` looks at each copy of the API alone, and so leaves out what happened before a copy began at a new address.
    """
    values = f"{metric}{labels}[{window}]"
    return f"{_COPIES} (max_over_time({values})) - min without (instance) (min_over_time({values}))"


def _growth_of_jobs(metric: str, labels: str, window: str) -> str:
    """Return by how much a total of each job grew.

    The growth of a job that is younger than the window is its whole total, also its ends before the first scrape. Alerts have the same rule.
    """
    values, seconds = f"{metric}{labels}", _SECONDS[window]
    young = f"max by (job) (tocsin_job_registered_timestamp_seconds) > time() - {seconds}"
    return (
        f"({_COPIES} (max_over_time({values}[{window}])) unless {_COPIES} ({values} offset {window})) "
        f"and on (job) {young} or {_growth(metric, labels, window)}"
    )


def _quantiles(metric: str, labels: str = "") -> dict[str, str]:
    summed = f"sum by (le) ({_rate(f'{metric}_bucket', labels)})"
    return {f"{quantile:g}": f"histogram_quantile({quantile:g}, {summed})" for quantile in (0.5, 0.9, 0.99)}


def _or_zero(expression: str) -> str:
    """Show zero if there is no series: those of processes begin with their first value."""
    return f"{expression} or on() vector(0)"


_FAILED: Final = '{status="failed"}'

# --- overview --------------------------------------------------------------------------------------------------------

OVERVIEW: Final = Dashboard(
    "tocsin",
    "Tocsin: overview",
    "How the executions of all jobs went, and what waits.",
    {
        "Now": (
            _stat("A ticker leads", _or_zero(f"max({_HIP}_leader_active)"), description="1: jobs become due."),
            _stat("Alerts that fire", _or_zero('count(ALERTS{alertstate="firing"})')),
            _stat("Jobs", f"max({_HIP}_jobs_registered)"),
            _stat("Locks held", _or_zero(f"sum({_COPIES} ({_HIP}_lock_held))")),
            _stat("Dead letters, 24 h", f"max({_growth('tocsin_dead_letters_total', '', '24h')})"),
            _stat("Next fire", f"min({_HIP}_next_fire_seconds)", "s"),
        ),
        "Executions": (
            Panel("Executions by outcome", {"{{status}}": f"sum by (status) ({_rate('tocsin_executions_total')})"}),
            Panel("Executions by trigger", {"{{trigger}}": f"sum by (trigger) ({_rate('tocsin_executions_total')})"}),
            Panel("Duration of executions", _quantiles(f"{_HIP}_execution_duration_seconds"), unit="s"),
            Panel(
                "Lateness of scheduled starts",
                _quantiles("tocsin_start_lateness_seconds"),
                unit="s",
                description="From the instant to the first claim by a worker.",
            ),
            Panel("Steps by outcome", {"{{status}}": f"sum by (status) ({_rate(f'{_HIP}_dag_steps_total')})"}),
            Panel(
                "Retries and dead letters",
                {"retries": _rate("tocsin_retries_total"), "dead letters": _rate("tocsin_dead_letters_total")},
            ),
            Panel(
                "Jobs that fail most, 1 h",
                {"{{job}}": f"topk(10, sum by (job) ({_growth_of_jobs(f'{_HIP}_executions_total', _FAILED, '1h')}))"},
                "bargauge",
                names_job=True,
            ),
            Panel(
                "Jobs with most retries, 1 h",
                {"{{job}}": f"topk(10, {_growth_of_jobs(f'{_HIP}_retries_total', '', '1h')})"},
                "bargauge",
                names_job=True,
            ),
        ),
        "Queues and workers": (
            Panel("Tasks that wait", {"{{queue}}": f'{_COPIES} (tocsin_queue_tasks{{state="waiting"}})'}),
            Panel("Tasks that run", {"{{queue}}": f'{_COPIES} (tocsin_queue_tasks{{state="running"}})'}),
            Panel(
                "Age of the oldest task that waits", {"{{queue}}": f"{_COPIES} (tocsin_queue_oldest_seconds)"}, unit="s"
            ),
            Panel(
                "Reasons to wait",
                {"{{queue}}: {{reason}}": f"{_COPIES} (tocsin_queue_waiting_tasks)"},
            ),
            Panel("Workers of queues", {"{{queue}}": f"{_COPIES} (tocsin_queue_workers)"}),
            Panel("Workers by state", {"{{kind}}: {{state}}": f"{_COPIES} (tocsin_workers)"}),
        ),
        "Triggers": (
            Panel(
                "Events of triggers by outcome",
                {"{{outcome}}": "sum by (outcome) (rate(tocsin_trigger_events_total[5m]))"},
                description="No value: no trigger has had an event.",
            ),
            Panel(
                "Age of the events that are handled",
                {"{{job}}": "max by (job) (tocsin_trigger_lag_seconds)"},
                unit="s",
                names_job=True,
            ),
        ),
        "What should be zero": (
            Panel(
                "Instants missed, 1 h",
                {
                    "{{job}}: {{reason}}": f"sum by (job, reason) ({_growth_of_jobs('tocsin_instants_missed_total', '', '1h')})"
                },
                names_job=True,
            ),
            Panel(
                "Recovered and abandoned executions, 15 min",
                {
                    "recovered": f"max({_growth('tocsin_executions_recovered_total', '', '15m')})",
                    "abandoned": f"max({_growth('tocsin_executions_abandoned_total', '', '15m')})",
                    "lost after {{what}}": _growth("tocsin_messages_lost_total", "", "15m"),
                },
            ),
        ),
    },
)

# --- job -------------------------------------------------------------------------------------------------------------

_OF_JOB: Final = '{job="$job"}'


def _ended(status: str) -> str:
    labels = f'{{job="$job", status="{status}"}}'
    return f"sum({_growth_of_jobs(f'{_HIP}_executions_total', labels, '24h')})"


JOB: Final = Dashboard(
    "tocsin-job",
    "Tocsin: job",
    "The executions of one job.",
    {
        "Now": (
            _stat(
                "Next fire", f"max({_HIP}_next_fire_seconds{_OF_JOB})", "s", "No value: the job has no coming instant."
            ),
            _stat("Lock held", _or_zero(f"max({_HIP}_lock_held{_OF_JOB})")),
            _stat("Completed, 24 h", _ended("completed")),
            _stat("Failed, 24 h", _ended("failed")),
            _stat("Skipped, 24 h", _ended("skipped")),
            _stat("Dead letters, 24 h", f"max({_growth_of_jobs(f'{_HIP}_dead_letters_total', _OF_JOB, '24h')})"),
        ),
        "Executions": (
            Panel(
                "Executions by outcome",
                {"{{status}}": f"sum by (status) ({_rate(f'{_HIP}_executions_total', _OF_JOB)})"},
            ),
            Panel(
                "Executions by trigger",
                {"{{trigger}}": f"sum by (trigger) ({_rate(f'{_HIP}_executions_total', _OF_JOB)})"},
            ),
            Panel("Duration of executions", _quantiles(f"{_HIP}_execution_duration_seconds", _OF_JOB), unit="s"),
            Panel("Retries", {"retries": _rate(f"{_HIP}_retries_total", _OF_JOB)}),
            Panel(
                "Events of triggers by outcome",
                {"{{outcome}}": _or_zero(f"sum by (outcome) (rate(tocsin_trigger_events_total{_OF_JOB}[5m]))")},
            ),
            Panel(
                "Steps by outcome",
                {"{{step}}: {{status}}": f"sum by (step, status) ({_rate(f'{_HIP}_dag_steps_total', _OF_JOB)})"},
            ),
            Panel(
                "Instants missed, 1 h",
                {"{{reason}}": f"sum by (reason) ({_growth_of_jobs('tocsin_instants_missed_total', _OF_JOB, '1h')})"},
            ),
        ),
    },
    (Variable("job", "Job", f"{_HIP}_retries_total"),),
)

# --- stages ----------------------------------------------------------------------------------------------------------

_OF_DURABLE: Final = '{durable=~"$durable"}'

STAGE: Final = Dashboard(
    "tocsin-stage",
    "Tocsin: stages",
    "What stages have not handled, and how their processes, streams and clocks are.",
    {
        "Stages": (
            Panel(
                "Messages of durables not handled", {"{{durable}}": f"{_COPIES} (tocsin_durable_messages{_OF_DURABLE})"}
            ),
            Panel(
                "Age of the oldest message",
                {"{{durable}}": f"{_COPIES} (tocsin_durable_oldest_seconds{_OF_DURABLE})"},
                unit="s",
            ),
            Panel(
                "Time since leases were renewed", {"{{lease}}": f"{_COPIES} (tocsin_lease_renewed_seconds)"}, unit="s"
            ),
            Panel("History behind the log", {"age": "max(tocsin_history_lag_seconds)"}, unit="s"),
            Panel("Messages that the history lacks", {"messages": "max(tocsin_history_lag_messages)"}),
        ),
        "Streams": (
            Panel("Size of streams", {"{{stream}}": f"{_COPIES} (tocsin_stream_bytes)"}, unit="bytes"),
            Panel(
                "Part of the size limit",
                {"{{stream}}": f"{_COPIES} (tocsin_stream_bytes / tocsin_stream_max_bytes)"},
                unit="percentunit",
            ),
            Panel("Appends", {"{{stream}}": "sum by (stream) (rate(tocsin_appends_total[5m]))"}),
        ),
        "Processes": (
            Panel(
                "Outcomes of handlers", {"{{outcome}}": "sum by (outcome) (rate(tocsin_handler_outcomes_total[5m]))"}
            ),
            Panel("Handlers that run", {"{{function}}": "sum by (function) (tocsin_running_tasks)"}),
            Panel("Offsets of clocks", {"{{instance}}": "tocsin_clock_offset_seconds"}, unit="s"),
            Panel(
                "Latency of the API, 99th percentile",
                {
                    "{{route}}": "histogram_quantile(0.99, sum by (le, route) "
                    '(rate(tocsin_http_request_seconds_bucket{route!="/ojs/v1/workers/fetch"}[5m])))'
                },
                unit="s",
                description="Without the request that waits for tasks.",
            ),
            Panel(
                "CPU",
                {"{{instance}}": 'rate(process_cpu_seconds_total{job=~".*tocsin.*"}[5m])'},
                unit="percentunit",
            ),
            Panel("Memory", {"{{instance}}": 'process_resident_memory_bytes{job=~".*tocsin.*"}'}, unit="bytes"),
            Panel("Lost traces", {"traces": _or_zero("sum(rate(tocsin_lost_traces_total[5m]))")}),
            Panel(
                "Foreign messages",
                {"messages": _or_zero("sum(max by (kind) (tocsin_foreign_messages_total))")},
                description="Messages in the log that no stage stored, as far as a running process has met them. Run `tocsin audit`.",
            ),
        ),
    },
    (Variable("durable", "Durable", "tocsin_durable_messages", is_multiple=True),),
)

DASHBOARDS: Final = {"overview": OVERVIEW, "job": JOB, "stage": STAGE}
"""All dashboards, by the name of their file."""
