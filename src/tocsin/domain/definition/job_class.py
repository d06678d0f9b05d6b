"""The class of a job: which guarantee its executions need (scratchbird, Job Classes)."""

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator

LEADER_ONLY: Final = "LEADER_ONLY"
QUORUM_REQUIRED: Final = "QUORUM_REQUIRED"
QUORUM_REPLICAS: Final = 3
"""The least number of servers that must keep the ledger and the log of a job with `QUORUM_REQUIRED`."""


def _spelled(value: Any) -> Any:  # noqa: ANN401 - before validation
    """Let small letters, hyphens and spaces stand for the name of a class."""
    return value.strip().upper().replace("-", "_").replace(" ", "_") if isinstance(value, str) else value


JobClass: TypeAlias = Annotated[Literal["LOCAL_SAFE", "LEADER_ONLY", "QUORUM_REQUIRED"], BeforeValidator(_spelled)]
