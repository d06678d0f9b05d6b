"""The statements, as they were read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ..statement_error import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    place: Place
    text: str
    """The text of the statement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobStatement(_Statement):
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateJob(_JobStatement):
    """`CREATE JOB`: the fields in the names of ScratchBird, and their places."""

    fields: Mapping[str, object] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterJob(CreateJob):
    """`ALTER JOB … SET`: the fields that change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropJob(_JobStatement):
    """`DROP JOB`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteJob(_JobStatement):
    """`EXECUTE JOB`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRun(_Statement):
    """`CANCEL JOB RUN`."""

    run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowJobs(_Statement):
    """`SHOW JOBS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowCreateJob(_JobStatement):
    """`SHOW CREATE JOB`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Select(_Statement):
    """`SELECT` over the views `sys.…`."""


Statement: TypeAlias = CreateJob | AlterJob | DropJob | ExecuteJob | CancelRun | ShowJobs | ShowCreateJob | Select
