"""Base class of the sections of the settings."""

from ..domain.documented_model import DocumentedModel


class Section(DocumentedModel, frozen=True, extra="forbid"):
    """A section: immutable; unknown fields are refused."""
