"""Airflow's DAGs: schedule, rules, tasks and their order become jobs; what is computed at run time is said."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from croniter import croniter

from tests.imports.given import NOW, SAMPLES, codes, imported, instants, refused
from tocsin.domain.definition import JobDefinition

_HEAD = "from airflow import DAG\nfrom airflow.operators.bash import BashOperator\nfrom datetime import datetime, timedelta\n"


def _dag(arguments: str, body: str = "a = BashOperator(task_id='a', bash_command='a')") -> str:
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return f"{_HEAD}with DAG('d', {arguments}) as dag:\n{lines}\n"


def _order(job: JobDefinition) -> dict[str, set[str]]:
    return {step.name: set(step.depends_on) for step in job.dag}


def test_dag_with_groups_and_chains_becomes_a_job(tmp_path: Path) -> None:
    written, jobs = imported("airflow", (SAMPLES / "orders_dag.py.txt").read_text(), tmp_path)
    job = jobs["orders-daily"]
    assert (job.schedule, job.timezone, job.catch_up, job.overlap_policy) == ("30 6 * * 1-5", "UTC", "once", "enqueue")
    assert (job.tags, job.description, job.execution_timeout) == (
        ("orders", "daily"),
        "Loads the orders of a day",
        14_400.0,
    )
    assert (job.retry.max_attempts, job.retry.initial_delay, job.retry.backoff, job.timeout) == (
        3,
        600.0,
        "none",
        3_600.0,
    )
    assert _order(job) == {
        "extract": set(),
        "clean_dedupe": {"extract"},
        "clean_check": {"clean_dedupe"},
        "load": {"clean_check"},
        "choose": {"load"},
        "mail": {"choose"},
        "archive": {"choose", "part_b"},
        "part_b": set(),
    }
    steps = {step.name: step for step in job.dag}
    assert (steps["extract"].function, steps["extract"].input) == (
        "orders-daily/_extract",
        {"source": "shop", "day": "{{ ds }}"},
    )
    command = steps["clean_check"].command
    assert command is not None
    assert (command.script, command.interpreter) == ("check ${HOME}", ("/bin/bash",))
    assert command.env == {"MODE": "strict"}
    assert steps["clean_dedupe"].retry is not None
    assert steps["clean_dedupe"].retry.max_attempts == 6
    assert (steps["mail"].queue, steps["load"].input) == (
        "mail",
        {"sql": "INSERT INTO orders SELECT * FROM staging", "postgres_conn_id": "dwh"},
    )
    assert codes(written) >= {
        "branch-not-supported",
        "computed-at-run-time",
        "data-interval",
        "empty-step-removed",
        "field-not-supported",
        "function-needs-handler",
        "operator-needs-handler",
        "template-not-supported",
        "trigger-rule-not-supported",
    }
    assert "in line 62" in written.text


def test_dags_of_a_module_become_jobs(tmp_path: Path) -> None:
    written, jobs = imported("airflow", (SAMPLES / "module_dags.py.txt").read_text(), tmp_path)
    numbers, newest = jobs["numbers"], jobs["newest-only"]
    assert (numbers.schedule, numbers.execution_timeout, numbers.tags) == ("0 0 * * *", 3_600.0, ("one", "two"))
    assert _order(numbers) == {
        "collect": {"part_0", "part_1", "part_2"},
        **{name: set() for name in ("part_0", "part_1", "part_2", "alone")},
    }
    assert (newest.schedule, newest.timezone, _order(newest)) == (
        "0 0,4,8,12,16,20 * * *",
        "UTC",
        {"latest_only": set()},
    )
    usual = {"data-interval", "catch-up-assumed", "empty-step-removed"}
    assert codes(written, "numbers") == usual | {"template-not-supported"}
    assert codes(written, "newest-only") == usual | {
        *("trigger-rule-not-supported", "operator-needs-handler", "branch-not-supported"),
    }
    assert codes(written, None) - codes(written, "numbers") - codes(written, "newest-only") == {
        *("no-time-limit", "command-settings"),
    }


def test_decorated_functions_become_steps(tmp_path: Path) -> None:
    written, jobs = imported("airflow", (SAMPLES / "taskflow_dag.py.txt").read_text(), tmp_path)
    assert {name: (job.schedule, job.timezone) for name, job in jobs.items()} == {
        "etl": ("@daily", "Europe/Berlin"),
        "hourly": ("15 1,3,5,7,9,11,13,15,17,19,21,23 * * *", "UTC"),
        "trigger": ("0 9 * * MON", "America/New_York"),
        "by-hand": (None, "UTC"),
    }
    assert _order(jobs["etl"]) == {"extract": set(), "transform": {"extract"}, "load": {"transform"}}
    steps = {step.name: step for step in jobs["etl"].dag}
    assert steps["transform"].input == {"rate": 1.5}
    assert steps["extract"].retry is not None
    assert steps["extract"].retry.max_attempts == 4
    assert (jobs["etl"].catch_up, jobs["etl"].catch_up_limit) == ("all", 1_000)
    assert _order(jobs["hourly"]) == {"one": {"two"}, "two": set()}
    assert "xcom-as-upstream" in codes(written, "etl")
    assert "data-interval" in codes(written, "hourly")
    assert "data-interval" not in codes(written, "trigger")
    assert {finding.code for finding in written.findings if finding.is_loss} == set()


@pytest.mark.parametrize(
    ("body", "order"),
    [
        ("a >> b >> c", {"a": "", "b": "a", "c": "b", "d": ""}),
        ("a << b << c", {"a": "b", "b": "c", "c": "", "d": ""}),
        ("[a, b] >> c >> d", {"a": "", "b": "", "c": "ab", "d": "c"}),
        ("a >> [b, c] >> d", {"a": "", "b": "a", "c": "a", "d": "bc"}),
        ("a >> (b, c)\nd << [b, c]", {"a": "", "b": "a", "c": "a", "d": "bc"}),
        ("a.set_downstream([b, c])\nd.set_upstream(c)", {"a": "", "b": "a", "c": "a", "d": "c"}),
        ("chain(a, [b, c], d)", {"a": "", "b": "a", "c": "a", "d": "bc"}),
        ("chain([a, b], [c, d])", {"a": "", "b": "", "c": "a", "d": "b"}),
        ("cross_downstream([a, b], [c, d])", {"a": "", "b": "", "c": "ab", "d": "ab"}),
        ("a >> Label('x') >> b\nc << Label('y') << d", {"a": "", "b": "a", "c": "d", "d": ""}),
        ("x = [a, b]\nx[0] >> x[1]\nx >> c", {"a": "", "b": "a", "c": "ab", "d": ""}),
        ("p, q = a, b\np >> q\na >> b", {"a": "", "b": "a", "c": "", "d": ""}),
        ("prev = a\nfor x in [b, c]:\n    prev >> x\n    prev = x", {"a": "", "b": "a", "c": "b", "d": ""}),
        (
            "for i in range(3):\n    if i == 1:\n        a >> b\n    else:\n        c >> d",
            {"a": "", "b": "a", "c": "", "d": "c"},
        ),
        ("x = []\nfor t in 'pq', 'rs':\n    x.append(a)\nx >> b", {"a": "", "b": "a", "c": "", "d": ""}),
        ("try:\n    a >> b\nexcept E:\n    pass", {"a": "", "b": "a", "c": "", "d": ""}),
    ],
)
def test_order_of_tasks_is_kept(body: str, order: dict[str, str], tmp_path: Path) -> None:
    tasks = "\n".join(f"{name} = BashOperator(task_id='{name}', bash_command='x')" for name in "abcd")
    _, jobs = imported("airflow", _dag("schedule=None", f"{tasks}\n{body}"), tmp_path)
    assert _order(jobs["d"]) == {name: set(before) for name, before in order.items()}


def test_order_of_nested_groups_is_kept(tmp_path: Path) -> None:
    body = """
first = BashOperator(task_id='first', bash_command='x')
with TaskGroup('outer') as outer:
    a = BashOperator(task_id='a', bash_command='x')
    with TaskGroup(group_id='inner') as inner:
        b = BashOperator(task_id='b', bash_command='x')
        c = BashOperator(task_id='c', bash_command='x')
    a >> inner
first >> outer >> BashOperator(task_id='last', bash_command='x')
"""
    _, jobs = imported("airflow", _dag("schedule=None", body), tmp_path)
    assert _order(jobs["d"]) == {
        "first": set(),
        "outer_a": {"first"},
        "outer_inner_b": {"outer_a"},
        "outer_inner_c": {"outer_a"},
        "last": {"outer_inner_b", "outer_inner_c"},
    }


@pytest.mark.parametrize(
    "expression", ["0 5 * * *", "*/15 9-17 * * 1-5", "0 0 1,15 * 5", "0 0 */2 * 1", "0 3 1-7 * *", "5/20 * * jan *"]
)
def test_cron_schedule_keeps_its_instants(expression: str, tmp_path: Path) -> None:
    _, jobs = imported("airflow", _dag(f"schedule='{expression}', catchup=False"), tmp_path)
    walk = croniter(expression, NOW, ret_type=datetime, max_years_between_matches=50)
    assert instants(jobs["d"]) == [walk.get_next() for _ in range(50)]


@pytest.mark.parametrize(
    ("arguments", "schedule"),
    [
        ("schedule='@hourly'", "@hourly"),
        ("schedule='@quarterly'", "0 0 1 */3 *"),
        ("schedule='0 5 * * * 30'", "30 0 5 * * *"),
        ("schedule_interval=timedelta(days=1), start_date=datetime(2021, 1, 1)", "0 0 * * *"),
        ("schedule=timedelta(weeks=1), start_date=datetime(2021, 1, 1, 6, 30)", "30 6 * * 5"),
        ("schedule=timedelta(minutes=20), start_date=datetime(2021, 1, 1, 0, 5)", "5,25,45 * * * *"),
        ("schedule=timedelta(minutes=7), start_date=datetime(2021, 1, 1)", "@every 7m"),
        ("schedule=timedelta(days=2), start_date=datetime(2021, 1, 1)", "@every 48h"),
        ("schedule=timedelta(hours=1)", "@every 1h"),
        ("schedule=pendulum.duration(hours=1)", "@every 1h"),
        ("schedule=DeltaTriggerTimetable(duration(days=3))", "@every 72h"),
        ("schedule='@once'", None),
        ("schedule='@continuous'", None),
        ("schedule=[Dataset('x')]", None),
        ("schedule=Dataset('x')", None),
        ("timetable=MyTimetable()", None),
        ("schedule=compute", None),
        ("schedule='not cron'", None),
        ("schedule=5", None),
        ("tags=[]", None),
    ],
)
def test_form_of_a_schedule(arguments: str, schedule: str | None, tmp_path: Path) -> None:
    written, jobs = imported("airflow", _dag(arguments), tmp_path)
    assert jobs["d"].schedule == schedule
    if schedule is None or schedule.startswith("@every"):
        assert codes(written, "d") & {"schedule-not-expressible", "computed-at-run-time", "interval-anchor"}


@pytest.mark.parametrize(
    "schedule",
    [
        "[Dataset('x'), Asset('y')]",
        "Asset('x')",
        "DatasetOrTimeSchedule(timetable=T('@daily'), datasets=[Dataset('x')])",
    ],
)
def test_schedule_by_data_is_named(schedule: str, tmp_path: Path) -> None:
    written, jobs = imported("airflow", _dag(f"schedule={schedule}"), tmp_path)
    [finding] = [each for each in written.findings if each.code == "schedule-not-expressible"]
    assert "'x'" in finding.text
    assert "`triggers`" in finding.text
    assert jobs["d"].schedule is None


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("schedule=None, sla_miss_callback=None, start_date=datetime(2030, 1, 1)", "start-not-supported"),
        ("schedule=None, end_date=datetime(2030, 1, 1)", "end-not-supported"),
        ("schedule=None, default_args={'end_date': datetime(2020, 1, 1)}", "end-not-supported"),
        ("schedule=None, start_date=when()", "computed-at-run-time"),
        ("schedule=None, max_active_runs=3", "run-limit-not-supported"),
        ("schedule='@daily'", "catch-up-assumed"),
        ("schedule=None, catchup=maybe()", "computed-at-run-time"),
        (
            "schedule=None, catchup=[1], max_active_runs=[2], tags={'a': 1}, max_active_tasks=[]",
            "run-limit-not-supported",
        ),
        ("schedule=None, default_args=load()", "computed-at-run-time"),
        ("schedule=None, default_args={'retries': n()}", "computed-at-run-time"),
        ("schedule=None, default_args={'retries': 1000}", "computed-at-run-time"),
        ("schedule=None, default_args={'sla': timedelta(hours=1)}", "field-not-supported"),
        ("schedule=None, on_failure_callback=f", "field-not-supported"),
        ("schedule=None, user_defined_macros={'a': f}", "field-not-supported"),
        ("schedule=None, params={'a': Param(5)}", "computed-at-run-time"),
        ("schedule=None, **more", "field-not-supported"),
    ],
)
def test_an_argument_without_an_equivalent_is_said(arguments: str, code: str, tmp_path: Path) -> None:
    written, jobs = imported("airflow", _dag(arguments), tmp_path)
    assert list(jobs) == ["d"]
    assert code in codes(written, "d")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("BashOperator(task_id='a', bash_command=make())", "operator-needs-handler"),
        ("BashOperator(task_id='a', bash_command='run.sh')", "template-not-supported"),
        ("BashOperator(task_id='a_{}'.format(1), bash_command='a')", "computed-at-run-time"),
        ("BashOperator(task_id='a', bash_command='a', cwd='/x')", "field-not-supported"),
        ("BashOperator(task_id='a', bash_command='a', pool='p')", "field-not-supported"),
        ("BashOperator(task_id='a', bash_command='a', end_date=datetime(2030, 1, 1))", "end-not-supported"),
        ("BashOperator(task_id='a', bash_command='a', env=os.environ)", "computed-at-run-time"),
        ("BashOperator(task_id='a', bash_command='a', env={'D': '{{ ds }}'})", "template-not-supported"),
        ("BashOperator(task_id='a', bash_command='a', env={'D': 'x'}, append_env=True)", "field-not-supported"),
        ("PythonOperator(task_id='a', python_callable=f, op_args=[now()])", "computed-at-run-time"),
        (
            "PythonOperator(task_id='a', python_callable=f, op_kwargs={'a': {'b': ['{{ ds }}']}})",
            "template-not-supported",
        ),
        (
            "PythonOperator(task_id='a', python_callable=f, op_kwargs={'a': '{{ ds }}', 'b': g()})",
            "template-not-supported",
        ),
        ("PythonOperator(task_id='a', python_callable=f, templates_dict={'q': 'x'})", "field-not-supported"),
        ("PythonOperator.partial(task_id='a', python_callable=f).expand(op_args=xs)", "computed-at-run-time"),
        ("FileSensor(task_id='a', filepath='x')", "operator-needs-handler"),
        ("FileSensor(task_id='a', places=['x', '{{ ds }}'])", "template-not-supported"),
        ("@task\ndef a(day): ...\na('{{ ds }}')", "template-not-supported"),
        ("@task.virtualenv(requirements=['x'])\ndef a(): ...\na()", "field-not-supported"),
        ("ShortCircuitOperator(task_id='a', python_callable=f)", "branch-not-supported"),
        ("BashOperator(task_id='a', bash_command='a') >> unknown()", "computed-at-run-time"),
        (
            "BashOperator(task_id='a', bash_command='a')\nif x:\n    BashOperator(task_id='b', bash_command='b')",
            "computed-at-run-time",
        ),
        ("BashOperator(task_id='a', bash_command='a')\nchain(*xs)", "computed-at-run-time"),
    ],
)
def test_a_task_without_an_equivalent_is_said(body: str, code: str, tmp_path: Path) -> None:
    written, jobs = imported("airflow", _dag("schedule=None", body), tmp_path)
    assert len(jobs["d"].dag) == 1
    assert code in codes(written, "d")


def test_findings_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    names = ("one", "two", "three", "four", "five", "six", "seven")
    unknown = ", ".join(f"{name}=5" for name in names)
    computed = ", ".join(f"{name}=f()" for name in names)
    body = f"BashOperator(task_id='a', bash_command='a', {unknown})\nFileSensor(task_id='b', {computed})"
    written, _ = imported("airflow", _dag(f"schedule=None, {unknown}", body), tmp_path)
    texts = [finding.text for finding in written.findings]
    for subject in "", "`a`: ", "`b`: ":
        assert [name for text in texts for name in names if text.startswith(f"{subject}`{name}`")] == [*names]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("dag.schedule_interval = None", "dag.schedule_interval"),
        ("a.trigger_rule = 'all_done'", "a.trigger_rule"),
        ("dag.doc_md = a.doc_md = __doc__", None),
        ("other.schedule = None", None),
    ],
)
def test_attribute_that_is_set_later_is_said(line: str, said: str | None, tmp_path: Path) -> None:
    text = _dag("schedule='@daily', catchup=False")
    written, _ = imported("airflow", f"{text}{line}\n", tmp_path)
    found = [finding.text.split("`")[1] for finding in written.findings if finding.code == "entry-changed"]
    assert found == ([] if said is None else [said])


def test_dags_that_a_function_makes_are_said(tmp_path: Path) -> None:
    text = f"{_HEAD}def make(n):\n    with DAG(n) as dag:\n        pass\n    return dag\nfor n in names:\n    globals()[n] = make(n)\n"
    written, jobs = imported("airflow", text, tmp_path)
    assert jobs == {}
    assert codes(written) >= {"computed-at-run-time"}
    assert written.losses


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("tasks = [BashOperator(task_id=n, bash_command='x') for n in 'ab']", 5),
        ("tasks = {'a': BashOperator(task_id='a', bash_command='x')}", 5),
        ("later = BashOperator(task_id='a', bash_command='x') if load() else None", 5),
        ("(lambda: BashOperator(task_id='a', bash_command='x'))()", 5),
        ("def make():\n    return BashOperator(task_id='a', bash_command='x')\nmake()", 6),
        ("@task\ndef read(n):\n    pass\nrows = [read(n) for n in range(3)]", 8),
        ("@task\ndef read(n):\n    pass\nrows = [read.override(task_id='b')(n) for n in range(3)]", 8),
        ("others = [DAG(f'd{n}') for n in range(3)]", 5),
        ("class OwnDag(DAG):\n    pass\nOwnDag('e')", 7),
    ],
)
def test_task_that_no_statement_leads_to_is_said(body: str, line: int, tmp_path: Path) -> None:
    text = _dag("schedule=None", f"BashOperator(task_id='first', bash_command='x')\n{body}")
    written, jobs = imported("airflow", text, tmp_path)
    assert list(jobs) == ["d"]
    assert [f.source.rpartition(":")[2] for f in written.findings if f.code == "computed-at-run-time"] == [
        str(line + 1)
    ]


@pytest.mark.parametrize(
    "body",
    [
        "@task\ndef read():\n    return BashOperator(task_id='a', bash_command='x')\nread()",
        "if False:\n    BashOperator(task_id='a', bash_command='x')",
        "if __name__ == '__main__':\n    BashOperator(task_id='a', bash_command='x')",
        "BashOperator.partial(task_id='a').expand(bash_command=['x'])",
        "for n in 'ab':\n    BashOperator(task_id=n, bash_command='x')",
    ],
)
def test_task_of_another_time_is_not_said(body: str, tmp_path: Path) -> None:
    text = _dag("schedule=None", f"BashOperator(task_id='first', bash_command='x')\n{body}")
    written, _ = imported("airflow", text, tmp_path)
    assert not [finding for finding in written.findings if "no statement" in finding.text]


@pytest.mark.parametrize(
    "body",
    [
        "from mylib import make\nnightly = make('nightly')",
        "from mylib import make\nfor name in ['a', 'b']:\n    globals()[name] = make(name)",
        "from .factories import make\ndef build(name):\n    return make(name)\nbuild('a')",
        "import mylib\nmylib.load('dags.yaml').generate_dags(globals())",
        "import mylib\nloader = mylib.Loader()\nloader.run(globals())",
        "from mylib import *\nmake('a')",
        "from mylib import make\nglobals().update({n: make(n) for n in 'ab'})",
        "from mylib import make\nlist(map(make, ['a', 'b']))",
        "from mylib import make\nwith make('a') as dag:\n    pass",
        "from mylib import make\ntry:\n    make('a')\nexcept ValueError:\n    pass",
        "from airflow import DAG\nclass Pipeline(DAG):\n    pass\nPipeline('a')",
        f"{_HEAD}from mylib import add\n@dag()\ndef nightly():\n    BashOperator(task_id='a', bash_command='x')\n    add(1)\nnightly()",
    ],
)
def test_call_of_a_factory_is_said(body: str, tmp_path: Path) -> None:
    written, _ = imported("airflow", f"{body}\n", tmp_path)
    assert "call-not-followed" in codes(written)
    assert "document-skipped" not in codes(written)


def test_function_inside_another_is_said(tmp_path: Path) -> None:
    text = "from airflow.decorators import dag\ndef make(n):\n    @dag(dag_id=n)\n    def inner():\n        pass\n    return inner()\nmake('a')\n"
    written, jobs = imported("airflow", text, tmp_path)
    assert (jobs, codes(written), written.losses) == ({}, {"computed-at-run-time"}, 1)


@pytest.mark.parametrize(
    "body",
    [
        "import logging\nlog = logging.getLogger(__name__)\nlog.info('x')",
        "import pendulum\nstart = pendulum.datetime(2026, 1, 1)",
        "from mylib import rate\ndef convert(n):\n    return rate(n)\nlimit = max(1, 2)",
        "from mylib import make\nif __name__ == '__main__':\n    make()",
    ],
)
def test_call_that_makes_no_job_is_not_said(body: str, tmp_path: Path) -> None:
    text = f"{body}\n{_dag('schedule=None')}"
    written, jobs = imported("airflow", text, tmp_path)
    assert list(jobs) == ["d"]
    assert "call-not-followed" not in codes(written)


def test_many_calls_are_counted(tmp_path: Path) -> None:
    written, _ = imported("airflow", "from mylib import make\n" + "make('a')\n" * 30, tmp_path)
    assert (codes(written), written.losses) == ({"call-not-followed"}, 21)
    assert "10 more calls" in str(written.findings)


def test_dag_without_tasks_is_a_comment(tmp_path: Path) -> None:
    written, jobs = imported("airflow", _dag("schedule=None", "pass"), tmp_path)
    assert jobs == {}
    assert codes(written, "d") >= {"entry-not-readable", "job-not-registrable"}


def test_cycle_is_a_comment(tmp_path: Path) -> None:
    body = (
        "a = BashOperator(task_id='a', bash_command='x')\nb = BashOperator(task_id='b', bash_command='x')\na >> b >> a"
    )
    written, jobs = imported("airflow", _dag("schedule=None", body), tmp_path)
    assert jobs == {}
    assert "job-not-registrable" in codes(written, "d")


def test_empty_steps_in_a_circle_end(tmp_path: Path) -> None:
    body = "a = EmptyOperator(task_id='a')\nb = EmptyOperator(task_id='b')\na >> b >> a"
    written, jobs = imported("airflow", _dag("schedule=None", body), tmp_path)
    assert jobs == {}
    assert "job-not-registrable" in codes(written, "d")


@pytest.mark.usefixtures("other_zone_table")
def test_start_date_is_in_the_zone_of_schedules(tmp_path: Path) -> None:
    start = "datetime(2021, 1, 1, 5, tzinfo=ZoneInfo('America/New_York'))"
    _, jobs = imported("airflow", _dag(f"schedule=timedelta(days=1), start_date={start}"), tmp_path)
    assert jobs["d"].schedule == "0 10 * * *"


def test_zone_of_naive_dates_is_said(tmp_path: Path) -> None:
    text = _dag("schedule='@daily', start_date=datetime(2021, 1, 1), catchup=False")
    written, _ = imported("airflow", text, tmp_path, timezone=None)
    assert "timezone-assumed" in codes(written)
    aware = _dag("schedule='@daily', start_date=datetime(2021, 1, 1, tzinfo=ZoneInfo('Asia/Tokyo')), catchup=False")
    written, jobs = imported("airflow", aware, tmp_path, timezone=None)
    assert jobs["d"].timezone == "Asia/Tokyo"
    assert written.losses == 0


@pytest.mark.parametrize(
    "body",
    [
        "x = ["
        + ", ".join(f"BashOperator(task_id='t{n}', bash_command='x')" for n in range(1_500))
        + "]\n"
        + "x >> x\n" * 3,
        "for i in range(1000):\n    for j in range(1000):\n        for k in range(1000):\n            BashOperator(task_id=f'{i}-{j}-{k}')",
        "for i in range(1000):\n    x = [" + "1, " * 50_000 + "]\n    BashOperator(task_id=f't{i}')",
        "a = BashOperator(task_id='a', bash_command='x')\n" + " >> ".join(["a"] * 5_000),
        "a = BashOperator(task_id='a', bash_command='x')\na" + "['x']" * 5_000,
        "with TaskGroup('g') as g:\n"
        + "".join("    " * (n + 1) + f"with TaskGroup('g{n}'):\n" for n in range(80))
        + "    " * 81
        + "pass\ng >> g",
    ],
)
def test_hostile_graph_is_read_or_refused(body: str, tmp_path: Path) -> None:
    allowed = {"too-large", "nested-too-deep", "invalid-python"}
    assert refused("airflow", _dag("schedule=None", body), tmp_path) <= allowed


def test_file_without_a_dag_is_said(tmp_path: Path) -> None:
    written, jobs = imported("airflow", "x = 1 << 3\n", tmp_path)
    assert (jobs, codes(written)) == ({}, {"document-skipped"})


def test_past_end_disables_the_job(tmp_path: Path) -> None:
    _, jobs = imported("airflow", _dag("schedule='@daily', end_date=datetime(2020, 1, 1), catchup=False"), tmp_path)
    assert jobs["d"].enabled is False
    assert datetime(2020, 1, 1, tzinfo=UTC) < NOW
