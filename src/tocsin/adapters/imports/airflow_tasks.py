"""Tasks of a DAG as steps: operators, functions, retries and time limits."""

import re
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any, Final

from ...domain import duration
from ...domain.definition import is_name
from ...domain.duration import MAX_DURATION_S
from .airflow_graph import Dag, Task, task_links
from .commands import script
from .drafts import UNLIMITED, Draft, Names, StepDraft, function_name, literal
from .python_values import Call, Unknown, is_static, shown

_NAME: Final = re.compile(r"[A-Za-z_][\w.]*")
MAX_RETRIES: Final = 99
EMPTY: Final = frozenset({"EmptyOperator", "DummyOperator"})
_PYTHON: Final = frozenset({"PythonOperator", "PythonVirtualenvOperator", "ExternalPythonOperator"})
_BRANCHES: Final = ("Branch", "ShortCircuit", "LatestOnly", "branch", "short_circuit")
_RULES: Final = frozenset(
    {"retries", "retry_delay", "retry_exponential_backoff", "max_retry_delay", "execution_timeout"}
)
_READ: Final = frozenset(
    {
        *("task_id", "dag", "task_group", "trigger_rule", "queue", "owner", "start_date", "end_date"),
        *("provide_context", "do_xcom_push", "doc", "doc_md", "doc_json", "doc_yaml", "doc_rst", "multiple_outputs"),
        *("show_return_value_in_logs", "task_display_name"),
    }
)
"""Arguments of every operator that are read elsewhere, or that say nothing about the work."""
_ALWAYS: Final = ("all_success", "TriggerRule.ALL_SUCCESS")
_HARMLESS: Final[tuple[Any, ...]] = (False, None, [], "")
_OF_EVERY: Final = frozenset(
    {
        *("depends_on_past", "wait_for_downstream", "email", "email_on_failure", "email_on_retry", "pool"),
        *("pool_slots", "priority_weight", "weight_rule", "sla", "on_failure_callback", "on_success_callback"),
        *("on_retry_callback", "on_execute_callback", "on_skipped_callback", "resources", "run_as_user"),
        *("executor_config", "inlets", "outlets", "max_active_tis_per_dag", "task_concurrency", "pre_execute"),
        *("post_execute", "params", "executor"),
    }
)
"""Arguments of every operator without an equivalent."""


def set_rules(
    draft: Draft, fields: dict[str, Any], arguments: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> None:
    """Set the retries and the time limit of a job or a step."""
    own = {name: value for name, value in arguments.items() if name in _RULES}
    if defaults is not None and not own:
        return
    given = {**(defaults or {}), **own}
    retries = given.get("retries", 0)
    if not isinstance(retries, int) or isinstance(retries, bool) or not 0 <= retries <= MAX_RETRIES:
        draft.add("computed-at-run-time", f"`retries` is {shown(retries)}; allowed are 0 to {MAX_RETRIES}")
        retries = 0
    retry: dict[str, Any] = {"max_attempts": retries + 1}
    delay = _seconds(draft, "retry_delay", given.get("retry_delay", timedelta(minutes=5)), 300.0)
    if retries:
        longest = _seconds(draft, "max_retry_delay", given.get("max_retry_delay", timedelta(days=1)), 86_400.0)
        is_growing = bool(given.get("retry_exponential_backoff"))
        most = max(delay, longest) if is_growing else delay
        retry |= {"initial_delay": duration.short(delay), "max_delay": duration.short(most), "jitter": 0.0}
        retry |= {} if is_growing else {"backoff": "none"}
    if defaults is None or own.keys() - {"execution_timeout"}:
        fields["retry"] = retry
    if (limit := given.get("execution_timeout")) is not None:
        seconds = _seconds(draft, "execution_timeout", limit, 0)
        if seconds > 0 and (defaults is None or "execution_timeout" in own):
            fields["timeout"] = duration.short(seconds)
    if defaults is None:
        fields.setdefault("timeout", UNLIMITED)


def report_arguments(draft: Draft, of: str, arguments: Mapping[str, Any]) -> None:
    for name, value in arguments.items():
        if name in _OF_EVERY and value not in _HARMLESS:
            draft.add("field-not-supported", f"{of}: `{name}` is {shown(value)}, which has no equivalent")


def set_steps(draft: Draft, dag: Dag, defaults: Mapping[str, Any]) -> None:
    """Set the steps of a job from the tasks of a DAG."""
    before = task_links(dag)
    dropped = [task for task in dag.tasks if task.call.name in EMPTY and not task.function]
    if len(dropped) == len(dag.tasks):
        dropped = dropped[1:]
    for task in dropped:
        _unlink(task, before)
        draft.add("empty-step-removed", f"`{_wish(task)}` does nothing")
        _report_rule(draft, _wish(task), task.call.keywords)
    names = Names(of_steps=True)
    steps: dict[Task, StepDraft] = {}
    for task in before:
        name = names.free("_".join((*(group.name for group in (task.group.path if task.group else ())), _wish(task))))
        names.take(name)
        steps[task] = StepDraft(name)
    for task, step in steps.items():
        step.after = [steps[each].name for each in before[task] if each in steps]
        if isinstance(written := _task_id(task), Unknown | Call):
            draft.add("computed-at-run-time", f"`{step.name}`: `task_id` is {shown(written)}")
        _set_work(draft, step, task)
        arguments = {**task.settings, **(task.call.keywords if not task.function else {})}
        set_rules(draft, step.fields, arguments, defaults)
        _set_arguments(draft, step, arguments)
        if task.is_mapped:
            draft.add(
                "computed-at-run-time", f"`{step.name}` has a copy for each value at run time: one step is written"
            )
    draft.steps = list(steps.values())


def _unlink(task: Task, before: dict[Task, list[Task]]) -> None:
    """Remove a task; the tasks after it wait for the tasks before it."""
    earlier = [each for each in before.pop(task) if each is not task]
    for others in before.values():
        if task in others:
            others.remove(task)
            others += [each for each in earlier if each not in others]


def _task_id(task: Task) -> Any:  # noqa: ANN401
    written = {**task.settings, **(task.call.keywords if not task.function else {})}.get("task_id")
    if written is None and not task.function and task.call.args:
        return task.call.args[0]
    return written


def _wish(task: Task) -> str:
    written = _task_id(task)
    return written if isinstance(written, str) else task.function or task.call.name


def _set_work(draft: Draft, step: StepDraft, task: Task) -> None:
    call, job = task.call, Names().free(draft.wish)
    kind = task.settings.get("@task", "") if task.function else call.name
    if kind == "BashOperator" and isinstance(command := call.keywords.get("bash_command"), str):
        _report_templates(draft, step.name, command)
        environment = call.keywords.get("env")
        texts = environment if isinstance(environment, dict) and is_static(environment) else {}
        if environment and not texts:
            draft.add("computed-at-run-time", f"`{step.name}`: `env` is {shown(environment)}")
        variables = {str(name): str(value) for name, value in texts.items()}
        _report_templates(draft, step.name, variables)
        step.command = script(draft, "/bin/bash", command, environment=variables)
        is_harmless = call.keywords.get("append_env") in _HARMLESS
        _report_rest(
            draft, step.name, call.keywords, {"bash_command", "env", *(("append_env",) if is_harmless else ())}
        )
        return
    if task.function:
        step.fields["function"] = function_name(f"{job}/{task.function}")
        _set_parameters(draft, step, task)
        _report_rest(draft, step.name, task.settings, {"@task", *task.parameters})
        draft.add(
            "function-needs-handler", f"move the code of `{task.function}` to a handler of `{step.fields['function']}`"
        )
    elif kind in _PYTHON or "python_callable" in call.keywords:
        called = call.keywords.get("python_callable")
        name = called.text if isinstance(called, Unknown | Call) and _NAME.fullmatch(called.text) else step.name
        step.fields["function"] = function_name(f"{job}/{name}")
        _set_values(draft, step, call.keywords.get("op_args"), call.keywords.get("op_kwargs"))
        draft.add(
            "function-needs-handler", f"move the code of `{name[:100]}` to a handler of `{step.fields['function']}`"
        )
        _report_rest(draft, step.name, call.keywords, {"python_callable", "op_args", "op_kwargs"})
    else:
        step.fields["function"] = function_name(f"{job}/{step.name}")
        own = {name: value for name, value in call.keywords.items() if name not in _READ | _RULES | _OF_EVERY}
        static = {name: value for name, value in own.items() if is_static(value)}
        if static:
            step.fields["input"] = literal(static)
        for name, value in own.items():
            if name not in static:
                draft.add("computed-at-run-time", f"`{step.name}`: `{name[:100]}` is {shown(value)}")
        _report_templates(draft, step.name, static)
        draft.add(
            "operator-needs-handler", f"`{step.name}` is a {kind}: write a handler of `{step.fields['function']}`"
        )
    if kind.startswith(_BRANCHES):
        draft.add("branch-not-supported", f"`{step.name}` chooses the steps after it: each of them runs")


def _set_parameters(draft: Draft, step: StepDraft, task: Task) -> None:
    """Set the input of a decorated function; results of other tasks come from upstream."""
    named = {**dict(zip(task.parameters, task.call.args, strict=False)), **task.call.keywords}
    static = {name: value for name, value in named.items() if is_static(value)}
    if static:
        step.fields["input"] = literal(static)
        _report_templates(draft, step.name, static)
    rest = [name for name in named if name not in static]
    if task.has_upstream_values:
        said = (
            f"`{step.name}` gets {', '.join(rest)[:200] or 'results'} from the steps before it, in `context.upstream`"
        )
        draft.add("xcom-as-upstream", said)
    elif rest:
        draft.add("computed-at-run-time", f"`{step.name}`: {', '.join(rest)[:200]} of the input")


def _set_values(draft: Draft, step: StepDraft, args: Any, keywords: Any) -> None:  # noqa: ANN401
    for field, value, kind in (("args", args, list), ("input", keywords, dict)):
        if not value:
            continue
        parts = value if isinstance(value, kind) else None
        if parts is not None and is_static(parts):
            step.fields[field] = literal(parts)
            _report_templates(draft, step.name, parts)
        elif isinstance(parts, dict):
            static = {name: each for name, each in parts.items() if is_static(each)}
            step.fields[field] = literal(static)
            _report_templates(draft, step.name, static)
            rest = ", ".join(str(name) for name, each in parts.items() if not is_static(each))
            draft.add("computed-at-run-time", f"`{step.name}`: {rest[:200]} of the input")
        else:
            draft.add("computed-at-run-time", f"`{step.name}`: the positional arguments are {shown(value)}")


def _set_arguments(draft: Draft, step: StepDraft, arguments: Mapping[str, Any]) -> None:
    _report_rule(draft, step.name, arguments)
    if (end := arguments.get("end_date")) is not None:
        draft.add("end-not-supported", f"`{step.name}` has the `end_date` {shown(end)}: remove the step then")
    queue = arguments.get("queue")
    if isinstance(queue, str) and is_name(queue):
        step.fields["queue"] = queue
    elif queue is not None:
        draft.add("field-not-supported", f"`{step.name}`: the queue {shown(queue)} is no name of a queue")
    report_arguments(draft, f"`{step.name}`", arguments)


def _report_rule(draft: Draft, step: str, arguments: Mapping[str, Any]) -> None:
    rule = arguments.get("trigger_rule", "all_success")
    if (rule.text if isinstance(rule, Unknown) else rule) not in _ALWAYS:
        said = f"`{step}` starts by the rule {shown(rule)}: here it needs the success of all steps before it"
        draft.add("trigger-rule-not-supported", said)


def _report_rest(draft: Draft, step: str, arguments: Mapping[str, Any], known: Collection[str]) -> None:
    for name, value in arguments.items():
        if name not in _READ | _RULES | _OF_EVERY and name not in known and value is not None:
            draft.add("field-not-supported", f"`{step}`: `{name[:100]}` is {shown(value)}, which has no equivalent")


def _report_templates(draft: Draft, step: str, value: Any) -> None:  # noqa: ANN401
    """Report each text in a value, a list or a mapping that Airflow fills in."""
    match value:
        case str():
            if "{{" in value or "{%" in value or value.endswith((".sh", ".bash", ".sql")):
                draft.add("template-not-supported", f"`{step}`: Airflow fills in {shown(value)}")
        case dict():
            for inner in value.values():
                _report_templates(draft, step, inner)
        case list() | tuple():
            for inner in value:
                _report_templates(draft, step, inner)


def _seconds(draft: Draft, name: str, value: Any, default: float) -> float:  # noqa: ANN401
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds <= MAX_DURATION_S:
        return float(seconds)
    draft.add("computed-at-run-time", f"`{name}` is {shown(value)}")
    return default
