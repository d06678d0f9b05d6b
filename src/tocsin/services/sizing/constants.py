"""Measured sizes, from the file that `python -m benchmarks.sizes` writes."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from pydantic import BaseModel, ConfigDict

FILE: Final = "measured.json"


class _Measured(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Conditions(_Measured):
    """The time of the measurement, the versions, and the machine."""

    date: str
    tocsin: str
    nats_server: str
    python: str
    cores: int
    load_average: float


class Cost(_Measured):
    """Messages and bytes of one stream, for an execution or for one of its steps."""

    messages: float
    bytes: float
    """Bytes of the messages as the server counts them, before compression, without input and results."""
    input: float
    """Copies of the input."""
    result: float
    """Copies of the result of each step."""


class Job(_Measured):
    """Bytes of a registered job, whether it runs or not."""

    ledger: float
    definitions: float
    locks: float


class History(_Measured):
    """Bytes in the database of an execution of one step, and of each further step."""

    sqlite: float
    sqlite_step: float
    postgresql: float
    postgresql_step: float


class Memory(_Measured):
    """Bytes of memory: of all stages in one process, and of nats-server."""

    stages: float
    stages_per_job: float
    stages_per_task: float
    nats: float
    nats_per_message: float


class Cpu(_Measured):
    """Milliseconds of one core, nats-server and worker included, without the handler."""

    execution: float
    step: float


class Constants(_Measured):
    """All measured sizes."""

    conditions: Conditions
    single: Mapping[str, Cost]
    """An execution of one step, by stream."""
    graph: Mapping[str, Cost]
    """An execution of several steps, without its steps."""
    step: Mapping[str, Cost]
    """Each step of an execution of several steps."""
    job: Job
    disk_per_byte: float
    """Bytes on the disk of nats-server for each byte of messages, with s2 compression."""
    archive_per_byte: float
    """Bytes of the archive for each byte of messages."""
    history: History
    memory: Memory
    cpu_ms: Cpu


@cache
def constants() -> Constants:
    """Return the sizes that were measured for this version."""
    return Constants.model_validate_json(files(__package__).joinpath(FILE).read_text("utf-8"))
