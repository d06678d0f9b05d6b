"""Every metric of an installation: its name, labels and meaning. docs/reference/metrics.md is generated from this."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeAlias, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

OWN_PREFIX: Final = "tocsin"
_FAMILIES: Final = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric; `is_hip_62`: hip-62 names it, and it has the prefix of the settings."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()
    is_hip_62: bool = False

    def full_name(self, prefix: str) -> str:
        """Return the name with its prefix; a counter's samples add `_total`."""
        return f"{prefix if self.is_hip_62 else OWN_PREFIX}_{self.name}"

    def family(self, prefix: str, samples: Iterable[tuple[tuple[str, ...], *tuple[Any, ...]]]) -> Family:
        """Return the family with samples: labels and a number, or buckets and a sum."""
        family: Any = _FAMILIES[self.kind](self.full_name(prefix), self.meaning, labels=self.labels)
        for labels, *numbers in samples:
            family.add_metric(labels, *numbers)
        return cast("Family", family)


_of_hip_62: Final = partial(Metric, is_hip_62=True)

JOB_EXECUTIONS: Final = _of_hip_62("executions", "counter", "Executions that ended.", ("job", "status", "trigger"))
JOB_RETRIES: Final = _of_hip_62("retries", "counter", "Failed attempts that are retried.", ("job",))
JOB_DEAD_LETTERS: Final = _of_hip_62("dead_letters", "counter", "New dead letters.", ("job",))
DURATION: Final = _of_hip_62(
    "execution_duration_seconds", "histogram", "Time from the first claim to the end.", ("job",)
)
JOBS: Final = _of_hip_62("jobs_registered", "gauge", "Registered jobs.")
NEXT_FIRE: Final = _of_hip_62("next_fire_seconds", "gauge", "Seconds until a job fires next.", ("job",))
LOCKS: Final = _of_hip_62("lock_held", "gauge", "1: an execution holds the job's lock.", ("job",))
STEPS: Final = _of_hip_62("dag_steps", "counter", "Steps that ended.", ("job", "step", "status"))
LEADER: Final = _of_hip_62("leader_active", "gauge", "1: a ticker leads; absent: no ticker leads.", ("lease",))


EXECUTIONS: Final = Metric("executions", "counter", "Executions of all jobs that ended.", ("status", "trigger"))
RETRIES: Final = Metric("retries", "counter", "Failed attempts of all jobs that are retried.")
DEAD_LETTERS: Final = Metric("dead_letters", "counter", "New dead letters of all jobs.")
LATENESS: Final = Metric(
    "start_lateness_seconds",
    "histogram",
    "Time from the scheduled instant to the first claim by a worker, of executions with the trigger `cron`, without the jitter of the job.",
)
MISSED: Final = Metric(
    "instants_missed", "counter", "Instants that passed without firing, against the schedule.", ("job", "reason")
)
RECOVERED: Final = Metric("executions_recovered", "counter", "Recoveries of executions that were lost on their way.")
LOST: Final = Metric("messages_lost", "counter", "Messages that were lost and recovered, by their type.", ("what",))
ABANDONED: Final = Metric("executions_abandoned", "counter", "Executions that could not be recovered.")
REGISTERED: Final = Metric(
    "job_registered_timestamp_seconds",
    "gauge",
    "Unix time of the first registration of a job. Alerts take the counters of a job that is younger than their window as an "
    "increase from zero.",
    ("job",),
)
LEFT_OUT: Final = Metric(
    "metrics_jobs_left_out", "gauge", "Jobs without series of their own: those beyond `metrics.max_jobs`."
)


QUEUE_TASKS: Final = Metric(
    "queue_tasks",
    "gauge",
    "Tasks of matched queues: `waiting`, `running`, and `held_back` (waiting because of a limit).",
    ("queue", "state"),
)
QUEUE_WAITING: Final = Metric(
    "queue_waiting_tasks",
    "gauge",
    "Tasks that wait, by the first reason: `queue_paused`, `queue_limit`, `namespace_limit`, `queue_rate`, `job_limit` (also of a key), or "
    "`worker` (none with the function, a grant and a free slot).",
    ("queue", "reason"),
)
QUEUE_OLDEST: Final = Metric("queue_oldest_seconds", "gauge", "Age of the oldest task that waits.", ("queue",))
QUEUE_WORKERS: Final = Metric("queue_workers", "gauge", "Workers that serve a queue.", ("queue",))
WORKERS: Final = Metric(
    "workers", "gauge", "Workers by kind (`agent`: those that register) and state.", ("kind", "state")
)
NAMESPACE_QUOTA: Final = Metric(
    "namespace_quota",
    "gauge",
    "Quota of a namespace for a day: `executions_per_day` or `bytes_per_day`.",
    ("namespace", "quota"),
)
NAMESPACE_USE: Final = Metric(
    "namespace_quota_used", "gauge", "Use of a quota of a namespace today (UTC).", ("namespace", "quota")
)
LEASE_RENEWAL: Final = Metric(
    "lease_renewed_seconds", "gauge", "Time since a leader renewed its lease; absent: it has no leader.", ("lease",)
)
ASIDE: Final = Metric(
    "candidates_aside", "gauge", "Processes that stand for no lease because their clocks are not credible."
)
HISTORY_LAG: Final = Metric("history_lag_seconds", "gauge", "Age of the oldest event that the history lacks.")
HISTORY_BEHIND: Final = Metric(
    "history_lag_messages", "gauge", "Messages of the log between the history and its newest event."
)
DURABLE_MESSAGES: Final = Metric(
    "durable_messages", "gauge", "Messages of other programs that a stage has not handled.", ("stream", "durable")
)
DURABLE_OLDEST: Final = Metric(
    "durable_oldest_seconds",
    "gauge",
    "Age of the oldest message of other programs that a stage has not handled.",
    ("stream", "durable"),
)
STREAM_BYTES: Final = Metric("stream_bytes", "gauge", "Size of a stream of JetStream.", ("stream",))
STREAM_MAX_BYTES: Final = Metric(
    "stream_max_bytes",
    "gauge",
    "Size at which a stream refuses messages or drops the oldest; absent: no limit.",
    ("stream",),
)
UNREADABLE_EVENTS: Final = Metric(
    "unreadable_events", "gauge", "Events that processes met and this version cannot read; what rests on them waits."
)
UNKNOWN_PARTS: Final = Metric("status_unknown_parts", "gauge", "Parts that did not answer `tocsin status`.")
PARTS: Final = Metric(
    "metrics_part_up", "gauge", "1: the metrics of a part are current; 0: they could not be read.", ("part",)
)

METRICS: Final = tuple(value for value in globals().values() if isinstance(value, Metric))
"""All metrics of an installation, in the order of the documentation."""
