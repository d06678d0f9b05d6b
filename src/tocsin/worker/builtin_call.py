"""The call of a built-in function: a task whose work the definition describes without code."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import Any, TypeVar

from pydantic import BaseModel, JsonValue, ValidationError

from ..domain.definition import STORED, size_of
from ..domain.errors import TocsinError
from ..domain.events import Failure
from ..domain.secret_reference import SecretReferenceError, resolve_references
from ..domain.template import Form, TemplateError, render, render_value
from .context import Context
from .outcome import SECRET_UNRESOLVED, WRONG_INPUT
from .output import AttemptOutput

M = TypeVar("M", bound=BaseModel)


class BuiltinFailure(TocsinError):
    """A built-in function failed, for a reason that its report names."""

    code = "builtin-failed"

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        retryable: bool = True,
        retry_after: float | None = None,
        **details: Any,  # noqa: ANN401 - JSON
    ) -> None:
        """`kind`: as retry policies write it. `retry_after`: the seconds that a server names."""
        super().__init__(message)
        self.kind = kind
        self.retryable = retryable
        self.retry_after = retry_after
        self.details: dict[str, JsonValue] = details

    def failure(self, redact: Callable[[str], str]) -> Failure:
        """Return the failure for the report."""
        return Failure(
            type=self.kind,
            message=redact(str(self)),
            retryable=self.retryable,
            retry_after=self.retry_after,
            details=self.details or None,
        )


def wrong_input(message: str) -> BuiltinFailure:
    """Return the failure of work whose values no attempt can use."""
    return BuiltinFailure(WRONG_INPUT, message, retryable=False)


def not_allowed(what: str, setting: str) -> str:
    """Return why a worker refuses a part of some work; `setting` would allow it."""
    return f"this worker does not allow {what}; add it to its setting `builtin.{setting}`, or use another queue"


@dataclass(frozen=True, slots=True)
class BuiltinCall:
    """One attempt of a built-in function."""

    context: Context
    specification: Mapping[str, JsonValue] = field(repr=False)
    """What the definition says, which no input changes."""
    output: AttemptOutput
    look_up: Callable[[str], str | None] = field(repr=False)
    """Returns a secret by its name."""
    redact: Callable[[str], str] = field(repr=False)
    """Replaces the secrets in a text by their references, also single lines of them."""
    redact_values: Callable[[str], str] = field(repr=False)
    """Replaces whole secrets, for a result."""
    has_secret: Callable[[str], bool] = field(repr=False)
    """Returns whether a text has a whole secret."""
    timeout: float
    """Seconds after which the attempt ends."""
    job_uuid: str | None = None
    """The id of the job's registration; None: the job is not registered, or runs no SQL."""
    is_handed_back: Callable[[], bool] = field(default=lambda: False, repr=False)
    """Returns whether the worker stops, so that another continues the attempt."""

    def read(self, model: type[M], name: str) -> M:
        """Return the specification of the work, which an error calls `name`.

        Raises:
            BuiltinFailure: this version cannot read it.
        """
        try:
            return model.model_validate(self.specification, context=STORED)
        except ValidationError as error:  # a newer version dispatched it
            message = f"this worker cannot read the {name}, and may be too old: {error.error_count()} problems"
            raise BuiltinFailure(WRONG_INPUT, message) from None

    def values(self) -> dict[str, JsonValue]:
        """Return the values of templates."""
        context = self.context
        return {
            "args": list(context.args),
            "attempt": context.attempt,
            "execution_id": context.execution_id,
            "fence": context.fence,
            "input": context.input,
            "job": context.job,
            "meta": dict(context.meta),
            "scheduled_time": context.scheduled_time.isoformat(),
            "step": context.step,
            "tags": list(context.tags),
            "upstream": dict(context.upstream),
        }

    def render(self, text: str, *, limit: int, form: Form = "text") -> str:
        """Return the text of a template, with each reference to a secret replaced.

        Raises:
            BuiltinFailure: the template cannot be rendered, or a secret is missing.
        """
        return str(self._rendered(text, partial(render, limit=limit, form=form)))

    def render_json(self, value: JsonValue, *, limit: int) -> JsonValue:
        """Return a JSON value whose texts are templates.

        A text that is a single `{{ … }}` becomes its value.

        `limit`: bytes of the result as JSON.

        Raises:
            BuiltinFailure: as `render` does, or the result is too large.
        """
        left = limit

        def filled(value: JsonValue) -> JsonValue:
            nonlocal left
            match value:
                case dict():
                    return {key: filled(inner) for key, inner in value.items()}
                case list() | tuple():
                    return [filled(inner) for inner in value]
                case str():
                    result = self._rendered(value, partial(render_value, limit=limit))
                    left -= size_of(result)
                    if left < 0:
                        raise wrong_input(f"a template renders to more than {limit:,} bytes of JSON")
                    return result
                case _:
                    return value

        return filled(value)

    def _rendered(self, text: str, rendering: Callable[[str, Mapping[str, JsonValue]], JsonValue]) -> JsonValue:
        """Return what a template renders to.

        While the template is rendered, a random word stands for a secret. So neither is a reference in a value resolved, nor
        a secret read as a template.
        """
        secrets: dict[str, str] = {}

        def stand_in(name: str) -> str | None:
            value = self.look_up(name)
            if value is None:
                return None
            word = token_hex(16)
            secrets[word] = value
            return word

        try:
            rendered = rendering(str(resolve_references(text, stand_in)), self.values())
        except SecretReferenceError as error:
            raise BuiltinFailure(SECRET_UNRESOLVED, str(error)) from None
        except TemplateError as error:
            raise wrong_input(str(error)) from None
        if isinstance(rendered, str):
            for word, value in secrets.items():
                rendered = rendered.replace(word, value)
        return rendered
