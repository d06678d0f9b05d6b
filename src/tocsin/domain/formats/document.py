"""A document being read: its fields and problems, and suggestions for misspelt names."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final, TypeAlias

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ..definition import MAX_PROBLEMS, DefinitionError, DefinitionProblem, JobDefinition, shorten, show
from ..definition.builtin_work import FIELDS
from ..definition.errors import problem_code
from ..schedule import zone_in

Path: TypeAlias = tuple[str | int, ...]
"""The path of a value in the normalized definition, e.g. `("retry", "max_delay")`."""

_MISSPELT: Final = {
    **dict.fromkeys(("cron", "expression", "every", "cron_expression"), "schedule"),
    **dict.fromkeys(("type", "task", "handler"), "function"),
    **dict.fromkeys(("tz", "time_zone", "schedule_tz"), "timezone"),
    "steps": "dag",
    **dict.fromkeys(("needs", "after"), "depends_on"),
    "retries": "retry",
    "attempts": "max_attempts",
    **dict.fromkeys(("payload", "env"), "input"),
    **dict.fromkeys(("id", "job_name"), "name"),
    "schema": "input_schema",
    "schedule": "cron",
    "function": "type",
    "initial_delay": "initial_interval",
    "multiplier": "backoff_coefficient",
    "max_delay": "max_interval",
    "disabled": "enabled",
    **dict.fromkeys(("deadline", "job_timeout"), "execution_timeout"),
    "timezone": "schedule_tz",
}
_MISNAMED_POLICY: Final = {
    **dict.fromkeys(("concurrent", "parallel"), "allow"),
    "forbid": "skip",
    **dict.fromkeys(("queue", "buffer"), "enqueue"),
    **dict.fromkeys(("replace", "cancel"), "cancel_previous"),
}
_REASONS: Final = {
    "string_type": "must be text",
    "string_unicode": "half a surrogate pair is no character",
    "bool_type": "must be true or false",
    **dict.fromkeys(("int_type", "int_from_float"), "must be a whole number"),
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
    "tuple_type": "must be a list",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "must be a mapping"),
}


@dataclass
class Document:
    """The fields of one job that were understood, and all problems."""

    spelled: Callable[[Path], Path]
    """The function from a path in the definition to the path in the document."""
    fields: dict[str, Any] = field(default_factory=dict)
    implied: dict[str, Any] = field(default_factory=dict)
    """Fields that the format gives a job without them. They do not count as set, so that other defaults may precede them."""
    problems: list[DefinitionProblem] = field(default_factory=list)

    def known(
        self, written: Mapping[Any, object], names: Collection[str], *, under: str = "", step: str | None = None
    ) -> dict[str, object]:
        """Return the known members of a mapping, and record a problem for each other member.

        If the meaning of an unknown name is clear, its value is read under the correct name, so that no second problem
        reports the field as missing. The definition is refused anyway.
        """
        fields = {name: value for name, value in written.items() if isinstance(name, str) and name in names}
        for name, value in written.items():
            if name in fields:
                continue
            if len(self.problems) > MAX_PROBLEMS:
                break
            text = name if isinstance(name, str) else show(name)
            meant = nearest(text, names, _MISSPELT)
            reason = f", did you mean `{meant}`?" if meant else f": the fields here are {listed(sorted(names))}"
            self.problems.append(DefinitionProblem(reason, field=under + shorten(text), step=step, unknown=True))
            if meant:
                fields.setdefault(meant, value)
        return fields

    def wrong(self, field: str, value: object, reason: str, *, code: str = "invalid-value") -> None:
        """Record the problem of a value that was written."""
        self.problems.append(DefinitionProblem(reason, field=field, value=show(value), code=code))

    def definition(self) -> JobDefinition:
        """Return the definition; raise DefinitionError with every problem, as the document spells it."""
        schedule = self.fields.get("schedule")
        if isinstance(schedule, str) and "timezone" not in self.fields and (zone := zone_in(schedule)):
            self.fields["timezone"] = zone
        implied = {name: value for name, value in self.implied.items() if name not in self.fields}
        try:
            definition = JobDefinition.model_validate({**implied, **self.fields})
        except ValidationError as error:
            problems = [*self.problems, *self._worded(error), *self._seen_without(error)]
            raise DefinitionError(*dict.fromkeys(problems)) from None
        if self.problems:
            raise DefinitionError(*self.problems)
        if implied:
            set_fields = definition.model_fields_set - implied.keys()
            return JobDefinition.model_construct(_fields_set=set_fields, **dict(definition))
        return definition

    def _seen_without(self, error: ValidationError) -> list[DefinitionProblem]:
        """Return the problems of rules that span fields.

        Pydantic checks these rules only if each field is valid, so this checks them on the valid fields.
        """
        wrong = {str(details["loc"][0]) for details in error.errors() if details["loc"]}
        if not wrong:
            return []
        rest = {name: value for name, value in self.fields.items() if name not in wrong}
        stand_ins = {"name": "name", "function": "function", "dag": [{"name": "step", "function": "function"}]}
        rest |= {name: value for name, value in stand_ins.items() if name in wrong}
        if not wrong.isdisjoint(FIELDS):
            rest["function"] = "function"
        try:
            JobDefinition.model_validate(rest)
        except ValidationError as spanning:
            return self._worded(spanning)
        return []

    def _worded(self, error: ValidationError) -> list[DefinitionProblem]:
        return [problem for details in error.errors(include_url=False) for problem in self._problems(details)]

    def _problems(self, details: ErrorDetails) -> list[DefinitionProblem]:
        cause = details.get("ctx", {}).get("error")
        if isinstance(cause, DefinitionError):
            return [replace(problem, field=self._respelled(problem)) for problem in cause.problems]
        path, step = self._addressed(details["loc"])
        field, code = _dotted(self.spelled(path)), problem_code(details["type"], cause)
        if details["type"] == "missing":
            return [DefinitionProblem("required, and not given", field=field, step=step, code=code)]
        return [DefinitionProblem(_reason(details), field=field, value=show(details["input"]), step=step, code=code)]

    def _respelled(self, problem: DefinitionProblem) -> str:
        if not problem.field or problem.step:
            return problem.field
        head, *rest = problem.field.split(".")
        return _dotted((*self.spelled((head,)), *(int(part) if part.isdecimal() else part for part in rest)))

    def _addressed(self, path: Path) -> tuple[Path, str | None]:
        """Split a path inside a step into the step's name and the rest."""
        match path:
            case ("dag", int(index), *rest) if rest:
                name = self.fields["dag"][index].get("name")
                return ("dag", *rest), name if isinstance(name, str) else str(index + 1)
            case _:
                return path, None


def _reason(details: ErrorDetails) -> str:
    value, context = details["input"], details.get("ctx", {})
    match details["type"]:
        case "value_error":
            return str(context["error"])
        case "string_type" if isinstance(value, bool | int | float):
            return "must be text: put it in quotes"
        case "literal_error":
            return _choice(value, str(context["expected"]))
        case kind:
            return _REASONS[kind].format_map(context) if kind in _REASONS else details["msg"]


def _choice(given: object, expected: str) -> str:
    choices = [choice for choice in expected.replace(" or ", ", ").replace("'", "").split(", ") if choice]
    meant = nearest(given, choices, _MISNAMED_POLICY) if isinstance(given, str) else None
    hint = f", did you mean `{meant}`?" if meant else ""
    return f"must be one of {listed(choices).replace(' and ', ' or ')}{hint}"


def _dotted(path: Path) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def nearest(written: str, known: Collection[str], synonyms: Mapping[str, str] | None = None) -> str | None:
    """Return the known name that `written` probably means, by synonym, spelling or similarity."""
    joined = _HUMP.sub("_", written[:64]).casefold().replace("-", "_").replace(" ", "_")
    if joined in known:
        return joined
    if synonyms and synonyms.get(joined) in known:
        return synonyms[joined]
    close = get_close_matches(joined, known, n=1, cutoff=0.6)
    return close[0] if close else None


def listed(names: Collection[str]) -> str:
    """Return names as a phrase: `a`, `b` and `c`."""
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"
