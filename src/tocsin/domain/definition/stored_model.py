"""Base class of the parts of a definition."""

from typing import Any

from pydantic import ValidationInfo, model_validator

from ..documented_model import DocumentedModel
from .fields import is_stored


class StoredModel(DocumentedModel, frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True):
    """A part of a definition: immutable; unknown fields are refused unless the log has them."""

    @model_validator(mode="before")
    @classmethod
    def _open_to_newer_versions(cls, data: Any, info: ValidationInfo) -> Any:  # noqa: ANN401 - before validation
        """Ignore fields that a newer version stored, so that the log stays readable."""
        known = cls.__pydantic_fields__.keys()
        if is_stored(info) and isinstance(data, dict) and not data.keys() <= known:
            names = {field.alias or name for name, field in cls.__pydantic_fields__.items()} | known
            return {key: value for key, value in data.items() if key in names}
        return data
