"""Jobs of Airflow's DAGs, read from the syntax tree of a Python file.

A run of Airflow starts at the end of its data interval, which is the instant that the schedule names. Its `logical_date` is the
beginning of the interval; Tocsin's `scheduled_time` is the instant of the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ...domain import duration
from ...domain.schedule import timezones
from .airflow_graph import Dag, Graphs
from .airflow_tasks import report_arguments, set_rules, set_steps
from .drafts import Draft, Draftings
from .python_values import Call, Unknown, Values, is_static, parse, shown, too_deep
from .schedules import CRONITER, FIELDS, Zone, fields_of, set_cron, set_interval, set_timezone
from .unfollowed_calls import report_unfollowed

_ABSENT: Final = object()
_PRESETS: Final = {"@quarterly": "0 0 1 */3 *"}
"""Aliases of Airflow alone."""
_INTERVALS: Final = frozenset({"CronDataIntervalTimetable", "DeltaDataIntervalTimetable"})
_TRIGGERS: Final = frozenset({"CronTriggerTimetable", "DeltaTriggerTimetable"})
_EVENTS: Final = frozenset(
    {"Dataset", "Asset", "DatasetAlias", "AssetAlias", "DatasetOrTimeSchedule", "AssetOrTimeSchedule"}
)
"""Schedules by updates of data."""
_DATE_PARTS: Final = ("year", "month", "day", "hour", "minute", "second")


@dataclass(frozen=True, slots=True)
class Moment:
    """A date of a DAG.

    Attributes:
        local: the date and time, naive.
        zone: the name of its time zone; None: the installation's.
    """

    local: datetime
    zone: str | None

    def at(self, default: str) -> datetime:
        try:
            return self.local.replace(tzinfo=timezones.zone(self.zone or default).data).astimezone(UTC)
        except (ValueError, OverflowError):
            return self.local.replace(tzinfo=UTC)


def moment_of(value: Any, now: datetime) -> Moment | None:  # noqa: ANN401 - a value of the file
    """Return the date of a `datetime(…)` or a `days_ago(…)`; None: any other value."""
    match value:
        case Call(name="datetime") if len(value.args) <= len(_DATE_PARTS) + 1:
            parts = dict(zip(_DATE_PARTS, value.args, strict=False)) | {
                name: part for name, part in value.keywords.items() if name in _DATE_PARTS
            }
            zone = value.keywords.get("tz", value.keywords.get("tzinfo"))
            try:
                local = datetime(**parts)  # noqa: DTZ001 - the zone is beside it
            except (TypeError, ValueError, OverflowError):
                return None
            default = "UTC" if value.full in {"pendulum.datetime", "timezone.datetime"} else None
            return Moment(local, default if zone is None else zone_of(zone))
        case Call(name="days_ago", args=(int() as days, *_)) if 0 <= days < 100_000:  # noqa: PLR2004
            return Moment(
                (now - timedelta(days=days)).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None), "UTC"
            )
        case _:
            return None


def zone_of(value: Any) -> str | None:  # noqa: ANN401
    """Return the name of a time zone; None: it is computed at run time."""
    match value:
        case str():
            return value
        case Call(name="timezone" | "ZoneInfo" | "Timezone" | "gettz", args=(str() as name,)):
            return name
        case _ if getattr(value, "text", "").endswith((".utc", ".UTC")) or getattr(value, "text", "") == "UTC":
            return "UTC"
        case _:
            return None


def set_schedule(draft: Draft, arguments: Mapping[str, Any], start: Moment | None, zone: Zone) -> None:
    names = ("schedule", "schedule_interval", "timetable")
    written = next((arguments[name] for name in names if name in arguments), _ABSENT)
    draft.original.append("no schedule is given" if written is _ABSENT else f"schedule: {shown(written)}")
    named = start.zone if start else None
    if written is _ABSENT:
        said = "the DAG names no schedule: Airflow 2 runs it each day, Airflow 3 never; write `schedule`"
        draft.add("schedule-not-expressible", said)
        return
    has_interval = True
    if isinstance(written, Call) and written.name in _INTERVALS | _TRIGGERS:
        has_interval = written.name in _INTERVALS
        given = written.keywords.get("timezone", written.args[1] if len(written.args) > 1 else None)
        named = zone_of(given) or named
        written = next(iter(written.args), written.keywords.get("cron", written.keywords.get("delta")))
    match written:
        case None:
            return
        case str():
            has_schedule = _set_text(draft, written)
        case timedelta():
            set_interval(draft, written, anchor=start.at(zone.name) if start else None, since="`start_date`")
            _explain(draft, has_interval=has_interval)
            return
        case _:
            is_read = isinstance(written, list | Call) or is_static(written)
            parts = written if isinstance(written, list) and written else [written]
            said = "write `schedule` by hand"
            if any(isinstance(each, Call) and each.name in _EVENTS for each in parts):
                said = "write `triggers`, or `schedule` and `depends_on` with the jobs that make the data"
            code = "schedule-not-expressible" if is_read else "computed-at-run-time"
            draft.add(code, f"the schedule is {', '.join(map(shown, parts[:10]))}: {said}")
            return
    if has_schedule:
        draft.names_no_zone = named is None
        set_timezone(draft, named or zone.name)
        _explain(draft, has_interval=has_interval)


def _set_text(draft: Draft, written: str) -> bool:
    text = " ".join(written.split())
    if text in {"@once", "@continuous"}:
        said = "trigger the job once" if text == "@once" else "write an interval such as `@every 1m`"
        draft.add("schedule-not-expressible", f"`{text}` has no equivalent: {said}")
        return False
    text = _PRESETS.get(text, text)
    fields = fields_of(text)
    if len(fields) not in {len(FIELDS), len(FIELDS) + 1}:
        draft.add("schedule-not-expressible", f"`{text[:200]}` is no cron expression: write `schedule` by hand")
        return False
    if len(fields) == len(FIELDS):
        return set_cron(draft, text, CRONITER)
    *fields, second = fields  # croniter has the second last, Tocsin first
    has_schedule = set_cron(draft, " ".join(fields), CRONITER)
    if has_schedule:
        draft.fields["schedule"] = f"{second} {draft.fields['schedule']}"
    return has_schedule


def _explain(draft: Draft, *, has_interval: bool) -> None:
    if has_interval and "schedule" in draft.fields:
        said = (
            "Airflow names a run by the beginning of its interval (`ds`, `logical_date`); `scheduled_time` is the instant of the run, "
            "one interval later"
        )
        draft.add("data-interval", said)


def set_limits(draft: Draft, arguments: Mapping[str, Any], now: datetime, zone: Zone) -> None:
    for name in ("start_date", "end_date"):
        written = arguments.get(name)
        if written is None:
            continue
        moment = moment_of(written, now)
        if moment is None:
            draft.add("computed-at-run-time", f"`{name}` is {shown(written)}")
            continue
        is_past = moment.at(zone.name) <= now
        if name == "start_date" and not is_past:
            draft.add("start-not-supported", f"`start_date` is {moment.local}: apply the job then")
        elif name == "end_date":
            draft.add("end-not-supported", f"`end_date` is {moment.local}: pause or delete the job then")
            if is_past:
                draft.fields["enabled"] = False


MAX_DAGS: Final = 1_000
_ARGUMENTS: Final = ("dag_id", "description", "schedule")
"""Positional arguments; Airflow 2 has the schedule third."""
_READ: Final = frozenset(
    {
        *("dag_id", "description", "schedule", "schedule_interval", "timetable", "start_date", "end_date", "catchup"),
        *("max_active_runs", "max_active_tasks", "concurrency", "default_args", "tags", "dagrun_timeout", "params"),
        *("is_paused_upon_creation", "doc_md", "default_view", "orientation", "owner_links", "dag_display_name"),
        *("render_template_as_native_obj",),
    }
)
_MAX_LIMIT: Final = 10_000


def read(text: str, source: str, *, zone: Zone, now: datetime) -> Draftings:
    """Return the jobs of the DAGs in a Python file."""
    drafted = Draftings(source)
    try:
        module = parse(text)
        graphs = Graphs(module, Values.in_module(module))
        drafted.drafts = [_draft(dag, source, zone, now) for dag in graphs.dags[:MAX_DAGS]]
        lines = {line for line, _ in graphs.skipped}.union(line for dag in graphs.dags for line, _ in dag.skipped)
        report_unfollowed(module, drafted, read=graphs.settled, lines=lines)
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
    if written.get("is_paused_upon_creation") is True:
        draft.fields["enabled"] = False
    params = written.get("params")
    if isinstance(params, dict) and is_static(params):
        draft.fields["input"] = {"params": params}
    elif params is not None:
        draft.add("computed-at-run-time", f"`params` is {shown(params)}")
    if isinstance(owner := defaults.get("owner"), str):
        draft.fields["meta"] = {"airflow": {"owner": owner}}
