"""Output of commands: tables, lines and JSON."""

from typing import Literal, TypeAlias

Format: TypeAlias = Literal["table", "json"]
