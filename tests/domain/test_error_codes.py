"""The codes of schedules, durations and problems: each is documented, each has a cause, and no sentence decides it."""

import ast
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

import tocsin
from tocsin.adapters.nats.client import connection_attempts
from tocsin.cli.runtime.errors import UsageError
from tocsin.domain import duration
from tocsin.domain.definition.problem_codes import PROBLEM_CODES
from tocsin.domain.duration import DurationCode, DurationError
from tocsin.domain.errors import TocsinError
from tocsin.domain.schedule import DstPolicy, ScheduleError, next_fire_times, parse, validate_timezone
from tocsin.domain.schedule.errors import ScheduleCode
from tocsin.services.operations.errors import OperationError

SCHEDULE_CAUSES: dict[str, list[Callable[[], object]]] = {
    "contradictory-timezone": [lambda: parse("every day at 9am Asia/Tokyo", "Europe/Berlin")],
    "invalid-dst-policy": [
        lambda: DstPolicy(gap="jump"),  # type: ignore[arg-type]
        lambda: DstPolicy(fold="thrice"),  # type: ignore[arg-type]
    ],
    "invalid-expression": [
        lambda: parse(""),
        lambda: parse("* * *"),
        lambda: parse("@dayly"),
        lambda: parse("ٌ * * * *"),
    ],
    "invalid-field": [
        lambda: parse("61 * * * * *"),
        lambda: parse("61 * * * *"),
        lambda: parse("0 24 * * *"),
        lambda: parse("0 0 32 * *"),
        lambda: parse("0 0 * FOO *"),
        lambda: parse("0 0 * * 5#9"),
        lambda: parse("every hour at minute 61"),
    ],
    "invalid-instant": [
        lambda: parse("at 2027-03-01"),
        lambda: next_fire_times("@daily", "UTC", datetime(2027, 1, 1), 1),  # noqa: DTZ001 - without an offset on purpose
    ],
    "invalid-interval": [lambda: parse("@every"), lambda: parse("@every 5x"), lambda: parse("@every 0s")],
    "invalid-phrase": [lambda: parse("every mondya at 9am"), lambda: parse("every 7 minutes")],
    "invalid-time": [lambda: parse("every day at 9"), lambda: parse("every day at 25:00")],
    "invalid-timezone": [lambda: validate_timezone(""), lambda: validate_timezone("CEST")],
    "never-fires": [lambda: parse("0 0 30 2 *")],
}
DURATION_CAUSES: dict[str, list[Callable[[], object]]] = {
    "invalid-duration": [lambda: duration.parse("soon"), lambda: duration.parse(None)],
    "duration-without-unit": [lambda: duration.parse("30")],
    "duration-in-calendar-units": [lambda: duration.parse("P1Y"), lambda: duration.parse("P1M")],
    "duration-out-of-range": [lambda: duration.parse(-1), lambda: duration.parse("521w6d")],
}
REPORTERS = {"DefinitionProblem", "wrong", "_wrong", "_located"}
"""The functions that report a problem with a `code`."""
FINDINGS = {"event-unreadable", "foreign-messages"}
"""Codes of findings of `tocsin doctor`, which are on the page of symptoms."""
WITH_CODES_OF_OTHERS = {"EventRefused", "Problem", "Refused"}
"""Errors with codes of other errors, or of `PROBLEMS`."""
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
CASES = [
    pytest.param(kind, code, cause, id=f"{code}-{number}")
    for kind, causes in ((ScheduleError, SCHEDULE_CAUSES), (DurationError, DURATION_CAUSES))
    for code, examples in causes.items()
    for number, cause in enumerate(examples)
]


@pytest.mark.parametrize(("kind", "code", "cause"), CASES)
def test_cause_has_its_code(kind: type[TocsinError], code: str, cause: Callable[[], object]) -> None:
    with pytest.raises(kind) as caught:
        cause()
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("kind", "codes", "causes"),
    [(ScheduleError, ScheduleCode, SCHEDULE_CAUSES), (DurationError, DurationCode, DURATION_CAUSES)],
)
def test_every_code_is_documented_and_raised(
    kind: type[TocsinError], codes: object, causes: dict[str, list[Callable[[], object]]]
) -> None:
    assert set(get_args(codes)) == kind.codes.keys() == causes.keys()


@pytest.mark.parametrize("code", get_args(ScheduleCode))
def test_sentence_does_not_decide_code(code: ScheduleCode) -> None:
    for problem in ("timezone: reworded", "phrase: reworded", "minute: reworded", "reworded"):
        assert ScheduleError(problem, code=code).code == code
        assert ScheduleError(problem, code=code).within("text", 1).code == code


def test_each_code_of_a_problem_is_documented() -> None:
    used = set(_literal_codes(REPORTERS))
    assert used - PROBLEM_CODES.keys() == set()
    assert used > {"required", "too-large", "nkey-seed-damaged", "unknown-choice"}


def test_each_documented_problem_is_reported_somewhere() -> None:
    literals = {
        node.value
        for path, tree in _modules()
        if path.name != "problem_codes.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
    }
    assert PROBLEM_CODES.keys() - literals == set()


def test_documented_codes_of_operations_are_those_in_use() -> None:
    used = set(_literal_codes({OperationError.__name__}))
    assert used | {OperationError.code} == OperationError.codes.keys()


def test_documented_codes_of_commands_are_those_in_use() -> None:
    used = set(_literal_codes({UsageError.__name__}))
    assert used | {UsageError.code} == UsageError.codes.keys()


def test_codes_of_commands_are_literals() -> None:
    assert [ast.unparse(code) for code in _codes({UsageError.__name__}) if not _is_plain(code)] == []


def test_documented_codes_of_connections_are_those_in_use() -> None:
    literals = {
        node.value
        for node in ast.walk(ast.parse(inspect.getsource(connection_attempts)))
        if isinstance(node, ast.Constant)
    }
    named = {text for text in literals if isinstance(text, str) and re.fullmatch(r"nats-[a-z-]+", text)}
    assert named - {"nats-awaited"} == connection_attempts.ConnectionFailed.codes.keys()


def test_each_code_is_in_the_reference() -> None:
    documented = set(re.findall(r"^\| `([a-z0-9-]+)` \|", REFERENCE.read_text(), re.MULTILINE))
    literals = {code.value for code in _codes() if isinstance(code, ast.Constant)}
    used = {code for code in literals if isinstance(code, str) and "-" in code} - FINDINGS
    assert used - documented == set()
    assert used > {"job-not-found", "schedule-above-quota", "not-supported"}


def test_class_that_takes_a_code_documents_its_codes() -> None:
    silent = {
        definition.name
        for _, tree in _modules()
        for definition in ast.walk(tree)
        if isinstance(definition, ast.ClassDef)
        and "self.code = " in ast.unparse(definition)
        and not _documents(definition)
    }
    assert silent == WITH_CODES_OF_OTHERS


@cache
def _modules() -> Sequence[tuple[Path, ast.Module]]:
    folder = Path(tocsin.__file__).parent
    return [(path, ast.parse(path.read_text())) for path in folder.rglob("*.py")]


def _literal_codes(callees: Collection[str]) -> Iterator[str]:
    """Yield the codes that the source passes by name to some functions and classes."""
    return (code.value for code in _codes(callees) if isinstance(code, ast.Constant))  # type: ignore[misc]


def _codes(callees: Collection[str] | None = None) -> Iterator[ast.expr]:
    """Yield what the source passes as `code` to some functions and classes; None: to all."""
    for _, tree in _modules():
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and (callees is None or _name(call.func) in callees):
                codes = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
                yield from (
                    c for code in codes for c in ([code.body, code.orelse] if isinstance(code, ast.IfExp) else [code])
                )


def _is_plain(code: ast.expr) -> bool:
    """Return whether a code is a literal, or that of another error."""
    return isinstance(code, ast.Constant) or (isinstance(code, ast.Attribute) and code.attr == "code")


def _documents(definition: ast.ClassDef) -> bool:
    targets = (node.target for node in definition.body if isinstance(node, ast.AnnAssign))
    return any(isinstance(target, ast.Name) and target.id == "codes" for target in targets)


def _name(callee: ast.expr) -> str | None:
    match callee:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return None
