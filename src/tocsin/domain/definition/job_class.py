"""The class of a job: which guarantee its executions need (scratchbird, Job Classes)."""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from .errors import DefinitionProblem, show

LEADER_ONLY: Final = "LEADER_ONLY"
QUORUM_REQUIRED: Final = "QUORUM_REQUIRED"
QUORUM_REPLICAS: Final = 3
"""The least number of servers that must keep the ledger and the log of a job with `QUORUM_REQUIRED`."""
MAX_PROPOSED_TO: Final = 100
"""The largest number of agents that a proposal names."""
DEFAULT_ACKNOWLEDGEMENT_TIMEOUT: Final = 10.0
"""Seconds for which a proposal waits for acknowledgements, unless the definition says otherwise."""

Acknowledgements: TypeAlias = Annotated[int, Field(ge=1, le=MAX_PROPOSED_TO, strict=True)]
"""The least number of agents that must acknowledge an execution."""


def _spelled(value: Any) -> Any:  # noqa: ANN401 - before validation
    """Let small letters, hyphens and spaces stand for the name of a class."""
    return value.strip().upper().replace("-", "_").replace(" ", "_") if isinstance(value, str) else value


JobClass: TypeAlias = Annotated[Literal["LOCAL_SAFE", "LEADER_ONLY", "QUORUM_REQUIRED"], BeforeValidator(_spelled)]


def acknowledgement_problems(
    job_class: JobClass, acknowledgements: int | None, timeout: float
) -> Iterator[DefinitionProblem]:
    if acknowledgements is None and timeout != DEFAULT_ACKNOWLEDGEMENT_TIMEOUT:
        reason = "limits the wait for `acknowledgements`: say how many agents must acknowledge, or leave it out"
        yield DefinitionProblem(reason, field="acknowledgement_timeout", value=show(timeout), code="exclusive-fields")
    if acknowledgements is not None and job_class != QUORUM_REQUIRED:
        reason = f"only executions of the class {QUORUM_REQUIRED} are acknowledged: write `job_class: {QUORUM_REQUIRED}`, or leave it out"
        yield DefinitionProblem(reason, field="acknowledgements", value=show(acknowledgements), code="exclusive-fields")
