"""What is wrong with a message that could not be read: its fields, their values, and what would be right."""

from collections.abc import Iterator

from pydantic import ValidationError

from .definition import DefinitionProblem, show


def problems(error: ValidationError) -> Iterator[DefinitionProblem]:
    """Every finding of the model that should have read it, in words that tell no program's insides."""
    for details in error.errors(include_url=False):
        field = ".".join(str(part) for part in details["loc"])
        cause = details.get("ctx", {}).get("error")
        match details["type"]:
            case "json_invalid":
                yield DefinitionProblem(f"not JSON: {cause}")
            case "missing":
                yield DefinitionProblem("required, and not given", field=field)
            case "extra_forbidden":
                yield DefinitionProblem("", field=field, unknown=True)
            case "model_type" | "model_attributes_type" if not field:
                yield DefinitionProblem(f"must be an object, and is {show(details['input'])}")
            case "tuple_type" | "list_type":
                yield DefinitionProblem("must be a list", field=field, value=show(details["input"]))
            case _:
                right = str(cause) if cause else details["msg"].removeprefix("Input ").replace("should", "must")
                yield DefinitionProblem(right, field=field, value=show(details["input"]) if field else None)
