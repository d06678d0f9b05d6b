"""Jobs of Airflow's DAGs, read from the syntax tree of a Python file.

A run of Airflow starts at the end of its data interval, which is the instant that the schedule names. Its `logical_date` is the
beginning of the interval; Tocsin's `scheduled_time` is the instant of the run.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from ...domain import duration
from .airflow_dags import Dag
from .airflow_graph import Graphs
from .airflow_schedule import moment_of, set_limits, set_schedule
from .airflow_tasks import report_arguments, set_rules, set_steps
from .drafts import Draft, Draftings
from .python_syntax import Call, Unknown, is_static, parse, shown, too_deep
from .python_values import Values
from .schedules import Zone
from .unfollowed_calls import report_unfollowed

MAX_DAGS: Final = 1_000
_ARGUMENTS: Final = ("dag_id", "description", "schedule")
"""Positional arguments; Airflow 2 has the schedule third."""
_READ: Final = frozenset(
    {
        *("dag_id", "description", "schedule", "schedule_interval", "timetable", "start_date", "end_date", "catchup"),
        *("max_active_runs", "max_active_tasks", "concurrency", "default_args", "tags", "dagrun_timeout", "params"),
        *(
            "is_paused_upon_creation",
            "doc_md",
            "default_view",
            "orientation",
            "owner_links",
            "dag_display_name",
            "render_template_as_native_obj",
        ),
    }
)
_MAX_LIMIT: Final = 10_000


def read(text: str, source: str, *, zone: Zone, now: datetime) -> Draftings:
    """Return the jobs of the DAGs in a Python file.

    Raises:
        DefinitionError: the file is not Python, or too large; the problem's source is `:line`.
    """
    drafted = Draftings(source)
    try:
        module = parse(text)
        graphs = Graphs(module, Values.in_module(module))
        drafted.drafts = [_draft(dag, source, zone, now) for dag in graphs.dags[:MAX_DAGS]]
        lines = {line for line, _ in graphs.skipped}.union(line for dag in graphs.dags for line, _ in dag.skipped)
        report_unfollowed(module, drafted, is_read=graphs.is_settled, lines=lines)
    except RecursionError:
        raise too_deep() from None
    for line, what in graphs.skipped:
        drafted.add("computed-at-run-time", f"{what} is computed when the program runs: write it by hand", line)
    if not graphs.dags and not drafted.findings:
        drafted.add("document-skipped", "no DAG is in this file")
    if len(graphs.dags) > MAX_DAGS:
        drafted.add("entry-not-readable", f"more than {MAX_DAGS:,} DAGs: the others are not read; divide the file")
    if any(draft.names_no_zone for draft in drafted.drafts):
        zone.note_in(drafted, "Airflow's `default_timezone`, which is UTC unless it was changed")
    if graphs.dags:
        drafted.add("no-time-limit", "a step without `execution_timeout` is stopped after 24h: set `timeout`")
    return drafted


def _draft(dag: Dag, source: str, zone: Zone, now: datetime) -> Draft:
    call = dag.call
    written = {**dict(zip(_ARGUMENTS, call.args, strict=False)), **call.keywords} if call else {}
    dag_id = written.get("dag_id", dag.name)
    draft = Draft(
        dag_id if isinstance(dag_id, str) else dag.name or "dag", f"{source}:{dag.line}", [f"DAG {shown(dag_id)}"]
    )
    if not isinstance(dag_id, str):
        draft.add("computed-at-run-time", f"`dag_id` is {shown(dag_id)}")
    defaults = _defaults(draft, written)
    arguments = {**{name: value for name, value in defaults.items() if name in {"start_date", "end_date"}}, **written}
    set_schedule(draft, arguments, moment_of(arguments.get("start_date"), now), zone)
    set_limits(draft, arguments, now, zone)
    _set_runs(draft, arguments)
    _set_texts(draft, written, defaults)
    set_rules(draft, draft.fields, defaults)
    report_arguments(draft, "default_args", defaults)
    for name, value in written.items():
        if name not in _READ and value is not None:
            draft.add("field-not-supported", f"`{name[:100]}` is {shown(value)}, which has no equivalent")
    for line, what in dag.skipped:
        draft.add("computed-at-run-time", f"{what} in line {line}: write the steps by hand")
    for line, what in dag.changes:
        draft.add("entry-changed", f"line {line} sets `{what}` afterwards: apply it to the job by hand")
    if dag.tasks:
        set_steps(draft, dag, defaults)
    else:
        draft.add("entry-not-readable", "the DAG has no tasks that can be read")
    return draft


def _defaults(draft: Draft, written: Mapping[str, Any]) -> dict[str, Any]:
    given = written.get("default_args")
    if given is None or isinstance(given, dict):
        return {str(name): value for name, value in (given or {}).items()}
    draft.add("computed-at-run-time", f"`default_args` is {shown(given)}")
    return {}


def _set_runs(draft: Draft, arguments: Mapping[str, Any]) -> None:
    catchup = arguments.get("catchup")
    draft.fields["catch_up"] = "once"
    if catchup is True:
        draft.fields |= {"catch_up": "all", "catch_up_limit": 1_000, "catch_up_max_age": "3650d"}
    elif catchup is None and "schedule" in draft.fields:
        draft.add(
            "catch-up-assumed", "without `catchup` Airflow 2 makes up for all missed runs, Airflow 3 for the newest"
        )
    elif catchup is not None and catchup is not False:
        draft.add("computed-at-run-time", f"`catchup` is {shown(catchup)}")
    runs = arguments.get("max_active_runs")
    draft.fields["overlap_policy"] = "enqueue" if runs == 1 else "allow"
    if runs is not None and runs != 1:
        draft.add("run-limit-not-supported", f"`max_active_runs` is {shown(runs)}: runs overlap without a limit")
    limit = arguments.get("max_active_tasks", arguments.get("concurrency"))
    if isinstance(limit, int) and not isinstance(limit, bool) and 0 < limit <= _MAX_LIMIT:
        draft.fields["concurrency"] = {"limit": limit}
    elif limit is not None:
        draft.add("computed-at-run-time", f"`max_active_tasks` is {shown(limit)}")
    timeout = arguments.get("dagrun_timeout")
    if isinstance(timeout, timedelta) and timeout > timedelta():
        draft.fields["execution_timeout"] = duration.short(timeout.total_seconds())
    elif timeout is not None:
        draft.add("computed-at-run-time", f"`dagrun_timeout` is {shown(timeout)}")


def _set_texts(draft: Draft, written: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    for name in ("description", "doc_md"):
        text = written.get(name)
        if isinstance(text, str) and text.strip():
            draft.fields.setdefault("description", text.strip())
        elif isinstance(text, Call | Unknown) and name == "description":
            draft.add("computed-at-run-time", f"`{name}` is {shown(text)}")
    tags = written.get("tags")
    if isinstance(tags, list) and all(isinstance(tag, str) for tag in tags):
        draft.fields["tags"] = list(dict.fromkeys(tags))
    elif tags is not None:
        draft.add("computed-at-run-time", f"`tags` is {shown(tags)}")
    paused = written.get("is_paused_upon_creation")
    if paused is True:
        draft.fields["enabled"] = False
    params = written.get("params")
    if isinstance(params, dict) and is_static(params):
        draft.fields["input"] = {"params": params}
    elif params is not None:
        draft.add("computed-at-run-time", f"`params` is {shown(params)}")
    if isinstance(owner := defaults.get("owner"), str):
        draft.fields["meta"] = {"airflow": {"owner": owner}}
