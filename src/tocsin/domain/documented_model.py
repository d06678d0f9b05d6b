"""Base class of pydantic models whose field docstrings describe their JSON Schema properties."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from pydantic import BaseModel
from typing_extensions import override

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


class DocumentedModel(BaseModel):
    """A model whose field docstrings describe its JSON Schema properties.

    Pydantic's `use_attribute_docstrings` parses the source of every model at import, which doubles the import time of
    the events. This class parses the source only when a schema is requested.
    """

    @classmethod
    @override
    def __get_pydantic_json_schema__(cls, schema: "CoreSchema", handler: "GetJsonSchemaHandler") -> "JsonSchemaValue":
        reference = handler(schema)
        properties = handler.resolve_ref_schema(reference).get("properties", {})
        for name, text in _field_docstrings(cls):
            field = cls.model_fields.get(name)
            written = properties.get((field.alias if field else None) or name)
            if written is not None:
                written.setdefault("description", text)
        return reference


def _field_docstrings(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    for owner in (*model.__mro__, *getattr(model, "DECLARED_BY", ())):
        if owner in {DocumentedModel, BaseModel} or not inspect.get_annotations(owner):
            continue
        [definition] = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        if not isinstance(definition, ast.ClassDef):
            continue
        for field, text in pairwise(definition.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(docstring))):
                    yield name, " ".join(docstring.split())
                case _:
                    pass
