"""Every problem that the API can answer with is in the published tables."""

import ast
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

import tocsin.adapters.http
from tocsin.adapters.http.api.problems import PROBLEMS, Problem, problem_of
from tocsin.adapters.http.ojs.envelope import _KINDS
from tocsin.adapters.http.ojs.protocol import ERRORS, error_code
from tocsin.ports import NotAllowed, SequenceConflict
from tocsin.services.operations.errors import Ambiguous, NotFound
from tocsin.services.operations.execution_requests import Duplicate

SOURCES = Path(tocsin.adapters.http.__file__).parent


def kinds_in_code() -> Iterator[tuple[str, str]]:
    """Yield each file and each kind that it passes to `Problem`, and the kinds of fields of a job."""
    yield from (("envelope.py", kind) for kind, _ in _KINDS.values())
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "Problem":
                for argument in node.args[1:2]:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        yield path.name, argument.value


def test_every_kind_in_code_is_listed() -> None:
    kinds = set(kinds_in_code())
    assert len(kinds) > 20
    assert {(file, kind) for file, kind in kinds if kind not in PROBLEMS} == set()


def test_every_listed_kind_is_in_code() -> None:
    from_framework = {"bad-request", "method-not-allowed"}
    from_exceptions = {kind for kind, problem in PROBLEMS.items() if problem.exceptions}
    assert set(PROBLEMS) == {kind for _, kind in kinds_in_code()} | from_framework | from_exceptions | {"malformed"}


@pytest.mark.parametrize("kind", PROBLEMS)
def test_problem_kind_has_one_documented_line(kind: str) -> None:
    problem = PROBLEMS[kind]
    assert kind == kind.lower().replace("_", "-")
    assert HTTPStatus(problem.status)
    assert problem.explanation.endswith(".")
    assert "\n" not in problem.explanation


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (NotFound("x"), 404, "not-found"),
        (Ambiguous("x", "executions", ()), 409, "ambiguous-id"),
        (Duplicate("x"), 409, "not-possible"),
        (SequenceConflict("x"), 409, "conflict"),
        (NotAllowed("x"), 503, "unavailable"),
        (RuntimeError("secret"), 500, "unforeseen"),
    ],
)
def test_exception_is_answered_by_its_nearest_class(error: Exception, status: int, kind: str) -> None:
    problem = problem_of(error)
    assert (problem.status, problem.kind, problem.code) == (status, kind, kind)


@pytest.mark.parametrize("kind", PROBLEMS)
def test_every_problem_has_an_open_job_spec_code(kind: str) -> None:
    code = error_code(Problem(PROBLEMS[kind].status, kind, ""))
    assert ERRORS[code].hint
