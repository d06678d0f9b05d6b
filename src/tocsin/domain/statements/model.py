"""The statements, as they were read."""

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from ..statement_error import Place


class _Statement(msgspec.Struct, frozen=True, kw_only=True):
    place: Place
    text: str


class _JobStatement(_Statement, frozen=True, kw_only=True):
    job: str


class CreateJob(_JobStatement, frozen=True, kw_only=True):
    """`CREATE JOB`: the fields in the names of ScratchBird, and their places."""

    fields: Mapping[str, object] = {}
    places: Mapping[str, Place] = {}


class AlterJob(CreateJob, frozen=True):
    """`ALTER JOB … SET`: the fields that change."""


class DropJob(_JobStatement, frozen=True):
    """`DROP JOB`."""


class ExecuteJob(_JobStatement, frozen=True):
    """`EXECUTE JOB`."""


class CancelRun(_Statement, frozen=True, kw_only=True):
    """`CANCEL JOB RUN`."""

    run: str


class ShowJobs(_Statement, frozen=True):
    """`SHOW JOBS`."""


class ShowCreateJob(_JobStatement, frozen=True):
    """`SHOW CREATE JOB`."""


class Select(_Statement, frozen=True):
    """`SELECT` over the views `sys.…`."""


Statement: TypeAlias = CreateJob | AlterJob | DropJob | ExecuteJob | CancelRun | ShowJobs | ShowCreateJob | Select
