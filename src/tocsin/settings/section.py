"""Base class of the sections of the settings."""

from pydantic import ConfigDict

from ..domain.documented_model import DocumentedModel


class Section(DocumentedModel):
    """A section: immutable; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")
