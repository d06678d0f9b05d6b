"""What travels, and what the log makes of it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Generic, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Input: TypeAlias = dict[str, JsonValue]
Sequence: TypeAlias = Annotated[int, Field(ge=0)]


class Message(BaseModel):
    """What travels: frozen, and open to fields that a newer version adds."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def encode(self) -> bytes:
        """The body on the wire: JSON without what is absent."""
        return self.model_dump_json(exclude_none=True).encode()


M_co = TypeVar("M_co", bound=Message, covariant=True)


@dataclass(frozen=True, slots=True)
class Recorded(Generic[M_co]):
    """A message as the log stored it: `sequence` in its stream, `time` (UTC) by the log's clock."""

    message: M_co
    subject: str
    sequence: int
    time: datetime
    message_id: str | None = None
