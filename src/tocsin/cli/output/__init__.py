"""How answers are printed."""

from typing import Literal, TypeAlias

Format: TypeAlias = Literal["table", "json"]
