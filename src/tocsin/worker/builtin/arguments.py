"""The arguments, the variables and the result of a program."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pydantic import JsonValue

from ...domain.definition.command import ResultKind
from ..builtin_call import BuiltinCall, BuiltinFailure, wrong_input
from ..results import INVALID_RESULT, MAX_RESULT_BYTES
from .lines import Lines

MAX_TEXT: Final = 131_072
"""Characters of an argument or a variable; Linux takes no more bytes."""


def rendered_arguments(texts: Sequence[str], call: BuiltinCall) -> tuple[str, ...]:
    """Return the arguments, each rendered by itself."""
    arguments, may_be_option = list[str](), False
    for text in texts:
        argument = call.render(text, limit=MAX_TEXT)
        if "\0" in argument:
            raise wrong_input(f"the argument {text!r} has a character U+0000")
        if argument.startswith("-") and not text.startswith("-") and not may_be_option:
            raise wrong_input(
                f"the value of the argument {text!r} begins with `-`, so the program would read an option; "
                "write `--name={{ … }}`, or an argument `--` before it"
            )
        may_be_option = may_be_option or text == "--"
        arguments.append(argument)
    return tuple(arguments)


def rendered_variables(texts: Mapping[str, str], call: BuiltinCall) -> dict[str, str]:
    """Return the variables of a definition, each value rendered by itself."""
    variables = dict[str, str]()
    for name, text in texts.items():
        variables[name] = call.render(text, limit=MAX_TEXT)
        if "\0" in variables[name]:
            raise wrong_input(f"the variable {name} has a character U+0000")
    return variables


def identity(call: BuiltinCall) -> dict[str, str]:
    """Return the variables that name the attempt, and its trace as OpenTelemetry does."""
    context = call.context
    variables = {
        "TOCSIN_JOB": context.job,
        "TOCSIN_STEP": context.step,
        "TOCSIN_EXECUTION_ID": context.execution_id,
        "TOCSIN_ATTEMPT": str(context.attempt),
        "TOCSIN_SCHEDULED_TIME": context.scheduled_time.isoformat(),
        "TOCSIN_FENCE": str(context.fence),
    }
    if context.traceparent is not None:
        variables["TRACEPARENT"] = context.traceparent
    if context.hops:
        variables["TOCSIN_HOPS"] = str(context.hops)
    return variables


def result_of(kind: ResultKind, out: Lines, redact: Callable[[str], str]) -> JsonValue:
    """Return the result of a program that succeeded.

    `redact` replaces secrets in a line of output, which never has all lines of one.
    """
    if kind == "exit_code":
        return {"exit_code": 0}
    if out.is_last_cut:
        message = f"the last line of the output has more than {MAX_RESULT_BYTES:,} bytes; keep the result in a store"
        raise BuiltinFailure(INVALID_RESULT, message, retryable=False)
    text = out.last.decode(errors="replace")
    if kind == "last_line":
        return redact(text)
    try:
        result: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        message = "the last line of the output is not JSON, which `result: json` requires"
        raise BuiltinFailure(INVALID_RESULT, message, retryable=False) from None
    return result
