"""Built-in functions in definitions: what the door checks, and the way of the specification to the task."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.domain.given import KEY, NOON
from tocsin.domain import execution, template
from tocsin.domain.definition import STORED, DefinitionError, DefinitionProblem, JobDefinition
from tocsin.domain.events import Dispatched, Recorded, Trigger
from tocsin.domain.execution_plan import from_trigger
from tocsin.domain.formats import reader

COMMAND = ["./report.sh", "--day", "{{ input.day }}"]


def problems_of(**fields: Any) -> list[DefinitionProblem]:  # noqa: ANN401 - as written
    with pytest.raises(DefinitionError) as raised:
        reader.read_job({"name": "report", **fields})
    return list(raised.value.problems)


def job(**fields: Any) -> JobDefinition:  # noqa: ANN401 - as written
    return reader.read_job({"name": "report", **fields})


def test_list_is_short_for_argv() -> None:
    assert job(command=COMMAND) == job(command={"argv": COMMAND})
    assert job(command=COMMAND).function == "tocsin.command"


def test_definition_reads_what_it_writes() -> None:
    definition = job(command=COMMAND)
    written = definition.model_dump(mode="json", exclude_defaults=True)
    assert reader.read_job(written) == definition
    assert JobDefinition.model_validate(written, context=STORED) == definition


@pytest.mark.parametrize(
    "fields",
    [
        {"command": COMMAND, "function": "report"},
        {"command": COMMAND, "dag": [{"step": "a", "function": "f"}]},
        {"dag": [{"step": "a", "function": "f", "command": COMMAND}]},
        {"command": {"argv": COMMAND, "script": "true"}},
    ],
)
def test_work_is_said_once(fields: dict[str, Any]) -> None:
    assert [problem.code for problem in problems_of(**fields)] == ["exclusive-fields"]


def test_problem_of_a_step_names_it() -> None:
    [problem] = problems_of(dag=[{"step": "a", "command": ["x", "{{ day }}"]}])
    assert (problem.step, problem.field, problem.code) == ("a", "command.argv", "malformed-template")


@pytest.mark.parametrize("function", ["tocsin.command", "tocsin.other"])
def test_name_of_builtin_function_is_reserved(function: str) -> None:
    assert [(p.field, p.code) for p in problems_of(function=function)] == [("function", "reserved-name")]
    with pytest.raises(ValidationError):
        JobDefinition(name="report", function=function)


@pytest.mark.parametrize(
    ("command", "field", "code"),
    [
        ({}, "command", "required"),
        ([], "command", "required"),
        (["{{ input.program }}"], "command.argv", "invalid-value"),
        ([""], "command.argv", "invalid-value"),
        (["x", "{{ input.day }"], "command.argv", "malformed-template"),
        (["x", "{% for a in input %}{% endfor %}"], "command.argv", "malformed-template"),
        (["x", "${env:TOKEN}"], "command.argv", "secret-reference-not-allowed"),
        ({"argv": ["x"], "cwd": "/${env:TOKEN}"}, "command.cwd", "secret-reference-not-allowed"),
        ({"argv": ["x"], "env": {"TOKEN": "${vault:x}"}}, "command.env.TOKEN", "malformed-secret-reference"),
        ({"argv": ["x"], "env": {"TOCSIN_JOB": "x"}}, "command.env", "reserved-name"),
        ({"argv": ["x"], "env": {"A=B": "x"}}, "command.env", "invalid-value"),
        ({"argv": ["x"] * 257}, "command.argv", "too-large"),
        ({"script": "x" * 70_000}, "command", "too-large"),
        ({"script": "true", "interpreter": []}, "command.interpreter", "required"),
        ({"argv": ["x"], "grace": "31s"}, "command.grace", "out-of-range"),
        ({"argv": ["x"], "retryable_exit_codes": [0]}, "command.retryable_exit_codes[0]", "out-of-range"),
        ({"argv": ["x"], "max_memory": 1}, "command.max_memory", "out-of-range"),
        ({"argv": ["x"], "shell": True}, "command.shell", "unknown-field"),
        ({"argv": ["sleep", 5]}, "command.argv[1]", "wrong-type"),
        ("./report.sh", "command", "wrong-type"),
    ],
)
def test_wrong_command_is_refused_with_code(command: object, field: str, code: str) -> None:
    assert [(problem.field, problem.code) for problem in problems_of(command=command)] == [(field, code)]


def test_secret_may_be_in_a_variable() -> None:
    assert job(command={"argv": ["x"], "env": {"TOKEN": "Bearer ${env:TOKEN}"}}).command is not None


def test_trigger_changes_input_but_not_command() -> None:
    definition = job(command=COMMAND, input={"day": "monday"}, overlap_policy="allow")
    hostile: dict[str, Any] = {
        "day": "sunday",
        "command": ["/bin/sh"],
        "builtin": {"argv": ["/bin/sh"]},
        "argv": ["/bin/sh"],
    }
    trigger = Recorded(Trigger(input=hostile, trigger="api"), "", 5, NOON, "m")
    plan = from_trigger(trigger, definition, 3)
    [task] = [task for task in tasks_of(plan) if isinstance(task, Dispatched)]
    assert task.builtin == {"argv": COMMAND}
    assert task.input == hostile


def tasks_of(admitted: Any) -> list[Any]:  # noqa: ANN401 - a plan, or its admission
    decided = execution.admit_and_dispatch(admitted, key=KEY)
    return [decided.task] if isinstance(decided, Dispatched) else []


def test_task_of_a_step_has_its_specification() -> None:
    definition = job(
        overlap_policy="allow",
        dag=[{"step": "a", "command": COMMAND}, {"step": "b", "function": "load", "depends_on": ["a"]}],
    )
    assert [step.function for step in definition.dag] == ["tocsin.command", "load"]
    plan = from_trigger(Recorded(Trigger(trigger="api"), "", 5, NOON, "m"), definition, 3).plan
    assert [step.builtin for step in plan.steps] == [{"argv": COMMAND}, None]


VALUES: dict[str, Any] = {"input": {"items": [1, 2], "text": "{{ job }}", "none": None, "yes": True}, "args": ["x"]}


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("a {{ input.text }}", "a {{ job }}"),
        ("{{ input.items }} {{ input.yes }} {{ input.none }}", "[1, 2] true null"),
        ("{{ input['items'][1] }}{{ args[0] }}", "2x"),
        ("{{ input.absent | default('none') }}", "none"),
        ("{% if input.absent is defined %}a{% elif input.yes %}b{% endif %}\n", "b\n"),
        ("{{ input.text | tojson }}", '"{{ job }}"'),
        ("no template", "no template"),
    ],
)
def test_template_writes_data(text: str, rendered: str) -> None:
    template.check(text)
    assert template.render(text, VALUES, limit=100) == rendered


@pytest.mark.parametrize(
    "text",
    [
        "{{ input.absent }}",
        "{{ input.absent.deeper }}",
        "{{ input.text.upper }}",
        "{{ input.__class__ }}",
        "{{ input['__class__'] }}",
        "{{ input.text.__class__.__mro__ }}",
        "{{ input.items.0.real }}",
    ],
)
def test_template_reaches_only_data(text: str) -> None:
    template.check(text)
    with pytest.raises(template.TemplateError):
        template.render(text, VALUES, limit=100)


@pytest.mark.parametrize(
    "text",
    [
        "{{ input.items.append(3) }}",
        "{{ range(9) }}",
        "{{ 9 * 'a' }}",
        "{{ 9 ** 9 }}",
        "{{ 'a' % 9 }}",
        "{{ input.items[0:1] }}",
        "{% for a in input %}{% endfor %}",
        "{% set a = 1 %}",
        "{% macro a() %}{% endmacro %}",
        "{% include 'a' %}",
        "{% import 'a' as b %}",
        "{{ config }}",
        "{{ self }}",
        "{{ input | attr('x') }}",
        "{{ input | replace('a', 'b') }}",
        "{{ input.items | join(input.text) }}",
        f"{{{{ input.items | join('{'x' * 101}') }}}}",
        "{{ input | tojson(indent=9999) }}",
        "{{ input is filter }}",
        "{{ input }}" * 101,
        f"{{{{ {'(' * 500}1{')' * 500} }}}}",
        f"{{{{ {'not ' * 5_000}1 }}}}",
        "{{ input",
    ],
)
def test_template_has_no_other_language(text: str) -> None:
    with pytest.raises(template.TemplateError):
        template.check(text)


def test_rendered_text_is_bounded() -> None:
    with pytest.raises(template.TemplateError):
        template.render("{{ input.text }}" * 20, VALUES, limit=100)


@pytest.mark.parametrize(
    "text",
    [
        "{{ '\"' | tojson | tojson }}",
        "{{ (input.x | tojson ~ '') | upper | tojson }}",
        "{{ input.x | join('--') | lower | join('--') }}",
        "{{ input.x | join('12345678901') }}",
        "{{ " + " ~ ".join(["input.x"] * 101) + " }}",
    ],
)
def test_template_multiplies_no_value(text: str) -> None:
    with pytest.raises(template.TemplateError):
        template.check(text)
