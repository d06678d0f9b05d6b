"""The calculator of `tocsin size`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .constants import Constants
from .execution_size import StreamSize, execution_size

DAY_S: Final = 86_400
INPUT_STREAMS: Final = frozenset({"REPORTS", "REQUESTS", "INPUTS"})
"""Streams with the limit `archive.max_input_bytes`."""
HEADROOM: Final = 2
"""Free space for each used byte: bursts, retries, compaction, and the time until an operator acts."""
LONGEST_S: Final = 120
"""The age up to which an ended execution always stays in the streams."""
_MIB: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class Load:
    """The work of an installation.

    Attributes:
        jobs: registered jobs.
        per_day: executions a day.
        steps: steps of an execution.
        retention_days: days for which history and archive are kept.
        input_bytes: size of a job's input as JSON.
        result_bytes: size of a step's result as JSON.
        open_tasks: tasks that wait for a worker, or run, at a time.
        replicas: servers that keep each stream.
    """

    jobs: int
    per_day: int
    retention_days: float
    steps: int = 1
    input_bytes: int = 0
    result_bytes: int = 0
    open_tasks: int = 1_000
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings that bound the streams.

    Attributes:
        hot_window_s: `archive.hot_window`, in seconds.
        max_messages: `archive.max_messages`.
        max_input_bytes: `archive.max_input_bytes`.
        output_bytes: `output.max_bytes` of both streams of output, `notifications.max_bytes`, and the limits of the streams that
            only some installations have, together.
        is_archive_in_nats: whether `archive.target` is `nats`.
        is_archived: `archive.enabled`.
    """

    hot_window_s: float = DAY_S
    max_messages: int = 500_000
    max_input_bytes: int = 1_073_741_824
    output_bytes: int = 2 * 268_435_456 + 67_108_864
    is_archive_in_nats: bool = True
    is_archived: bool = True


@dataclass(frozen=True, slots=True)
class Estimate:
    """The needs of an installation. Sizes are in bytes.

    Attributes:
        execution: what each stream stores for one execution.
        streams: what each stream holds at most in usual operation.
        hot_s: seconds for which an ended execution stays in the streams.
        nats_disk: what one NATS server keeps on its disk, the archive included if it is in NATS.
        nats_reserved: the least `max_file_store` of one NATS server, with the reserved limits and headroom.
        nats_memory: memory of one NATS server.
        archive: the archive after the retention, on all servers or at its own target once.
        sqlite: the history in SQLite after the retention.
        postgresql: the history in PostgreSQL after the retention.
        stages_memory: memory of one process with all stages.
        cores: cores that are busy on average, without handlers.
        max_messages: the least `archive.max_messages` with which the hot window is kept in full.
        max_input_bytes: the least `archive.max_input_bytes` with headroom: the archiver begins at half of it.
        is_input_limited: whether the stream of reports, at half of `archive.max_input_bytes`, has executions archived earlier.
    """

    execution: Mapping[str, StreamSize]
    streams: Mapping[str, StreamSize]
    hot_s: float
    nats_disk: int
    nats_reserved: int
    nats_memory: int
    archive: int
    sqlite: int
    postgresql: int
    stages_memory: int
    cores: float
    max_messages: int
    max_input_bytes: int
    is_input_limited: bool


def estimate(load: Load, measured: Constants, limits: Limits | None = None) -> Estimate:
    """Return what a load needs.

    The executions are spread evenly over the day, start on a schedule, hold a lock and succeed at once. A failed attempt costs about
    as much as a step.
    """
    limits = limits or Limits()
    each = execution_size(measured, steps=load.steps, input_bytes=load.input_bytes, result_bytes=load.result_bytes)
    rate = load.per_day / DAY_S
    in_log = each["LOG"].messages
    full = rate * limits.hot_window_s * in_log
    hot_s = (
        limits.hot_window_s if full <= limits.max_messages else max(LONGEST_S, limits.max_messages / (rate * in_log))
    )
    full_inputs = max(rate * hot_s * each[name].bytes for name in INPUT_STREAMS & each.keys())
    is_input_limited = full_inputs > limits.max_input_bytes / 2
    if is_input_limited:
        hot_s = max(LONGEST_S, hot_s * limits.max_input_bytes / 2 / full_inputs)
    executions = rate * hot_s
    streams = {name: StreamSize(size.messages * executions, size.bytes * executions) for name, size in each.items()}
    ledger = streams["LEDGER"]
    streams["LEDGER"] = StreamSize(ledger.messages + load.jobs, ledger.bytes + load.jobs * measured.job.ledger)
    buckets = StreamSize(2 * load.jobs, load.jobs * (measured.job.definitions + measured.job.locks))
    streams["KV"] = buckets
    bytes_ = sum(size.bytes for size in streams.values())
    messages = sum(size.messages for size in streams.values())
    archived = load.per_day * load.retention_days * sum(size.bytes for size in each.values())
    archive = archived * measured.archive_per_byte
    in_nats = archive if limits.is_archive_in_nats else 0.0
    disk = bytes_ * measured.disk_per_byte + in_nats
    kept, memory, further = load.per_day * load.retention_days, measured.memory, load.steps - 1
    history = measured.history
    reserved = len(INPUT_STREAMS) * limits.max_input_bytes + limits.output_bytes
    return Estimate(
        execution=each,
        streams=streams,
        hot_s=hot_s,
        nats_disk=round(disk),
        nats_reserved=_rounded(HEADROOM * disk + reserved),
        nats_memory=round(memory.nats + messages * memory.nats_per_message),
        archive=round(archive * (load.replicas if limits.is_archive_in_nats else 1)),
        sqlite=round(kept * (history.sqlite + further * history.sqlite_step)),
        postgresql=round(kept * (history.postgresql + further * history.postgresql_step)),
        stages_memory=round(
            memory.stages + load.jobs * memory.stages_per_job + load.open_tasks * memory.stages_per_task
        ),
        cores=rate * (measured.cpu_ms.execution + further * measured.cpu_ms.step) / 1_000,
        max_messages=max(1, round(full)),
        max_input_bytes=_rounded(2 * HEADROOM * full_inputs),
        is_input_limited=is_input_limited,
    )


def _rounded(bytes_: float) -> int:
    """Return a whole number of MiB, at least one."""
    return max(1, -(-int(bytes_) // _MIB)) * _MIB
