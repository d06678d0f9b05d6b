"""Celery's beat: static schedules become jobs, and what is computed at run time is said; nothing is executed."""

from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.imports.given import NOW, SAMPLES, codes, imported, instants, refused
from tests.properties import examples
from tocsin.adapters.imports import import_files
from tocsin.adapters.imports.celery_entries import Entries, Entry
from tocsin.domain.definition import DefinitionError

_HEAD = "from celery.schedules import crontab\nfrom datetime import timedelta\n"


def _entry(schedule: str, rest: str = "") -> str:
    return f'{_HEAD}beat_schedule = {{"a": {{"task": "t", "schedule": {schedule}, {rest}}}}}\n'


def test_forms_of_a_schedule_become_jobs(tmp_path: Path) -> None:
    written, jobs = imported("celery", (SAMPLES / "celeryconfig.py.txt").read_text(), tmp_path, timezone=None)
    assert {name: job.schedule for name, job in jobs.items()} == {
        "send-reminders": "*/15 * * * *",
        "nightly-report": "30 3 * * *",
        "first-monday": "0 9 * * 1#1",
        "weekdays": "0,30 0-2,22,23 * 1,4,7,10 1-5",
        "both-days": None,
        "heartbeat": "@every 30s",
        "poll": "@every 12500ms",
        "poll-slowly": "@every 2h",
        "at-sunset": None,
        "from-environment": None,
        "added": "5,35 * * * *",
        "debug": "@every 5s",
        "add-every-10": "@every 10s",
        "test": "30 7 * * 1",
    }
    report = jobs["nightly-report"]
    assert (report.function, report.timezone, report.timeout) == ("shop.tasks.report", "Europe/Berlin", 1_800.0)
    assert (report.args, report.input) == (("daily", 7), {"to": ["$${HOME}@example.com"], "dry_run": False})
    assert (report.overlap_policy, report.catch_up, report.retry.max_attempts) == ("allow", "once", 1)
    assert (jobs["send-reminders"].queue, jobs["send-reminders"].priority) == ("mail", 5)
    assert (jobs["add-every-10"].args, jobs["add-every-10"].input) == (("hello",), {"key": 1})
    assert codes(written, "nightly-report") == {"expiry-not-supported", "field-not-supported"}
    assert codes(written, "first-monday") == set()
    assert codes(written, "both-days") == codes(written, "at-sunset") == {"schedule-not-expressible"}
    assert codes(written, "from-environment") == codes(written, "test") | {"computed-at-run-time"}
    assert "computed-at-run-time" in codes(written, "debug")
    assert [f.source.rpartition(":")[2] for f in written.findings if f.job is None and f.is_loss] == ["51", "58"]


@pytest.mark.parametrize(
    "text",
    [
        'app.conf.beat_schedule = {"a": {"task": "t", "schedule": 5}}',
        'CELERYBEAT_SCHEDULE = {"a": {"task": "t", "schedule": 5}}',
        'class Config:\n    CELERY_BEAT_SCHEDULE: dict = {"a": {"task": "t", "schedule": 5}}',
        'app.conf.update(beat_schedule={"a": {"task": "t", "schedule": 5}})',
        'app.conf.update({"beat_schedule": dict(a=dict(task="t", schedule=5))})',
        'x = {"a": {"task": "t", "schedule": 5}}\napp.conf.beat_schedule = {**x}',
        'app = Celery("x", beat_schedule={"a": {"task": "t", "schedule": 5}})',
        'app.conf.beat_schedule |= {"a": {"task": "t", "schedule": 5}}',
        'app.conf["beat_schedule"] = {"a": {"task": "t", "schedule": 5}}',
        'app.conf["beat_schedule"]["a"] = {"task": "t", "schedule": 5}',
        'CELERY_BEAT_SCHEDULE = app.conf.beat_schedule = {"a": {"task": "t", "schedule": 5}}',
        'zone, app.conf.beat_schedule = "UTC", {"a": {"task": "t", "schedule": 5}}',
        'app.conf.beat_schedule.setdefault("a", {"task": "t", "schedule": 5})',
        'app.conf.beat_schedule.update(a={"task": "t", "schedule": 5})',
        'setattr(app.conf, "beat_schedule", {"a": {"task": "t", "schedule": 5}})',
        'CELERY = {"broker_url": "redis://", "beat_schedule": {"a": {"task": "t", "schedule": 5}}}',
        'app.config_from_object({"beat_schedule": {"a": {"task": "t", "schedule": 5}}})',
        'entries = {"a": {"task": "t", "schedule": 5}}\napp.conf.beat_schedule = entries',
        'entries = {}\nentries["a"] = {"task": "t", "schedule": 5}\nCELERY_BEAT_SCHEDULE = entries',
        'entries: dict = {}\nentries.update(a={"task": "t", "schedule": 5})\napp.conf.update(beat_schedule=entries)',
        'entries = {}\nentries |= {"a": {"task": "t", "schedule": 5}}\nsettings = {"beat_schedule": entries}',
    ],
)
def test_schedule_is_found_in_every_place(text: str, tmp_path: Path) -> None:
    written, jobs = imported("celery", text, tmp_path)
    assert (jobs["a"].schedule, jobs["a"].function) == ("@every 5s", "t")
    assert "computed-at-run-time" not in codes(written)


@pytest.mark.parametrize(
    ("schedule", "rest", "code"),
    [
        ("make()", "", "computed-at-run-time"),
        ("crontab(minute=random())", "", "computed-at-run-time"),
        ("crontab(minute='61')", "", "schedule-not-expressible"),
        ("crontab(minute='5/2')", "", "schedule-not-expressible"),
        ("crontab(minute=[])", "", "schedule-not-expressible"),
        ("crontab(minute=0, nowfun=now)", "", "field-not-supported"),
        ("timedelta(0)", "", "schedule-not-expressible"),
        ("-5", "", "schedule-not-expressible"),
        ("1e300", "", "computed-at-run-time"),
        ("5", "'args': (now(),)", "computed-at-run-time"),
        ("5", "'options': {'queue': 'Bad Queue'}", "field-not-supported"),
        ("5", "'options': OPTIONS", "computed-at-run-time"),
        ("5", "'options': {'queue': name()}", "computed-at-run-time"),
        ("5", "'enabled': False", "field-not-supported"),
    ],
)
def test_a_value_without_an_equivalent_is_said(schedule: str, rest: str, code: str, tmp_path: Path) -> None:
    written, jobs = imported("celery", _entry(schedule, rest), tmp_path)
    assert list(jobs) == ["a"]
    assert code in codes(written, "a")


def test_whole_schedule_that_is_computed_is_said(tmp_path: Path) -> None:
    written, jobs = imported("celery", "beat_schedule = load()\n", tmp_path)
    assert (jobs, codes(written), written.losses) == ({}, {"computed-at-run-time"}, 1)
    assert written.text.endswith("jobs: []\n")


@pytest.mark.parametrize(
    "text",
    [
        'def other():\n    entries = {}\n    entries["x"] = 1\n',
        'def other(entries):\n    entries["x"] = 1\n',
        'class Other:\n    entries = {}\n    entries["x"] = 1\n',
        'def other():\n    from jobs import entries\n    entries["x"] = 1\n',
        "def other():\n    for entries in load():\n        entries |= load()\n",
    ],
)
def test_name_of_another_block_is_no_schedule(text: str, tmp_path: Path) -> None:
    """Functions that see the name of the module change the schedule."""
    top = 'entries = {"a": {"task": "t", "schedule": 5}}\nentries.pop("c", None)\napp.conf.beat_schedule = entries\n'
    inside = (
        'def change():\n    entries["b"] = {"task": "t", "schedule": 6}\n'
        'class Local:\n    entries = {}\n    def change(self):\n        entries["c"] = {"task": "t", "schedule": 7}\n'
        'def outer():\n    global entries\n    entries |= {"d": {"task": "t", "schedule": 8}}\n'
    )
    written, jobs = imported("celery", top + text + inside, tmp_path)
    assert sorted(jobs) == ["a", "b", "c", "d"]
    assert "computed-at-run-time" not in codes(written)


@pytest.mark.parametrize(
    "text",
    [
        "@periodic_task(run_every=crontab(minute=0))\ndef report():\n    pass\n",
        "@app.periodic_task(run_every=5)\nasync def report():\n    pass\n",
        "class Report(PeriodicTask):\n    run_every = 5\n",
        "def make():\n    return {'report': {'task': 't', 'schedule': 5}}\n",
        "add(entry=dict(task='t', schedule=5))\n",
        "first, beat_schedule = load()\n",
        "app.conf.beat_schedule.update(**load())\n",
        "app.conf.beat_schedule |= load()\n",
        "entries = load() or {}\napp.conf.beat_schedule = entries\n",
        "entries = {}\nentries.update(load())\napp.conf.beat_schedule = entries\n",
        "entries = {}\nentries[load()] = {}\napp.conf.beat_schedule = entries\n",
        "def set_up(entries):\n    app.conf.beat_schedule = entries\n",
        "from jobs import entries\napp.conf.beat_schedule = entries\n",
    ],
)
def test_entry_outside_known_places_is_said(text: str, tmp_path: Path) -> None:
    written, jobs = imported("celery", text, tmp_path)
    assert (jobs, codes(written), written.losses) == ({}, {"computed-at-run-time"}, 1)


@pytest.mark.parametrize(
    "text",
    [
        "del app.conf.beat_schedule['a']\n",
        "if not DEBUG:\n    del app.conf.beat_schedule['a']\n",
        "app.conf.beat_schedule.pop('a', None)\n",
        "app.conf.beat_schedule.pop(name)\n",
        "app.conf.beat_schedule.clear()\n",
        "app.conf.beat_schedule['a']['schedule'] = 60\n",
        "app.conf.beat_schedule['a']['args'] += (1,)\n",
        "app.conf.beat_schedule['a'].update(schedule=60)\n",
        "app.conf.beat_schedule = {}\n",
    ],
)
def test_entry_that_changes_later_is_said(text: str, tmp_path: Path) -> None:
    first = "from celery import Celery\napp = Celery()\napp.conf.beat_schedule = {'a': {'task': 't', 'schedule': 5}}\n"
    later = "app.conf.beat_schedule['b'] = {'task': 't', 'schedule': 7}\n"
    written, jobs = imported("celery", first + text + later, tmp_path)
    assert (list(jobs), codes(written, "a"), written.losses) == (["a", "b"], {"entry-changed"}, 1)
    assert f"entry-changed: line {5 if text.startswith('if') else 4} " in written.text


NAMELESS = """\
@app.on_after_configure.connect
def setup(sender, **kwargs):
    sender.add_periodic_task(10.0, greet.s('hello'), name='greet')
    sender.add_periodic_task(20.0, greet.s('hello'))
    sender.add_periodic_task(30.0, greet.s('bye'))
    sender.add_periodic_task(40.0, greet.s('bye'), kwargs={'a': 1})
    sender.add_periodic_task(50.0, greet.s('bye'))
"""


def test_nameless_entries_differ_by_their_arguments(tmp_path: Path) -> None:
    """Celery makes the name of such an entry of its task and arguments."""
    written, jobs = imported("celery", NAMELESS, tmp_path)
    assert len(jobs) == 5
    repeated = [finding.job for finding in written.findings if finding.code == "entry-repeated"]
    assert [jobs[name].schedule for name in repeated if name] == ["@every 50s"]


@pytest.mark.parametrize(
    "text",
    [
        "beat_schedule = {'a': {'task': 't', 'schedule': 5}}\nbeat_schedule['a'] = {'task': 't', 'schedule': 7}\n",
        (
            "class Dev:\n    beat_schedule = {'a': {'task': 't', 'schedule': 5}}\n"
            "class Production(Dev):\n    beat_schedule = {'a': {'task': 't', 'schedule': 7}}\n"
        ),
    ],
)
def test_second_entry_of_a_name_is_said(text: str, tmp_path: Path) -> None:
    """Both jobs would run."""
    written, jobs = imported("celery", text, tmp_path)
    assert {name: job.schedule for name, job in jobs.items()} == {"a": "@every 5s", "a-2": "@every 7s"}
    assert (codes(written, "a"), codes(written, "a-2")) == (set(), {"entry-repeated"})


def test_entry_of_another_file_is_said(tmp_path: Path) -> None:
    for name in ("base.py", "production.py"):
        (tmp_path / name).write_text(_entry("5"))
    written = import_files(
        "celery", [str(tmp_path / "base.py"), str(tmp_path / "production.py")], now=NOW, timezone="UTC"
    )
    assert [(finding.job, finding.source) for finding in written.findings if finding.is_loss] == [
        ("a-2", f"{tmp_path}/production.py:3")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "CELERY_BEAT_SCHEDULE = {'a': {'task': 't', 'schedule': 5}}\napp.conf.beat_schedule = CELERY_BEAT_SCHEDULE\n",
        "CELERY_BEAT_SCHEDULE = app.conf.beat_schedule = {'a': {'task': 't', 'schedule': 5}}\n",
    ],
)
def test_schedule_of_two_names_is_read_once(text: str, tmp_path: Path) -> None:
    written, jobs = imported("celery", text, tmp_path)
    assert (list(jobs), written.losses) == (["a"], 0)


def test_second_time_zone_is_said(tmp_path: Path) -> None:
    text = "class A:\n    timezone = 'Asia/Tokyo'\nclass B:\n    timezone = 'Europe/Berlin'\n"
    written, jobs = imported("celery", text + _entry("crontab(hour=3, minute=0)"), tmp_path)
    assert (jobs["a"].timezone, codes(written) & {"timezone-assumed"}) == ("Europe/Berlin", {"timezone-assumed"})


def test_many_changes_are_read_quickly(tmp_path: Path) -> None:
    entries = "".join(f"beat_schedule['{number}'] = {{'task': 't', 'schedule': 5}}\n" for number in range(2_000))
    changes = "beat_schedule.clear()\nbeat_schedule['1'].pop('args')\n" * 5_000
    written, _ = imported("celery", f"beat_schedule = {{}}\n{entries}{changes}", tmp_path)
    assert sum(finding.code == "entry-changed" for finding in written.findings) == 2_000


class Counted(dict[int, int]):
    """The lines of changes, with the number of entries that are looked up or changed."""

    uses = 0

    def __contains__(self, key: object) -> bool:
        self.uses += 1
        return super().__contains__(key)

    def setdefault(self, key: int, default: int) -> int:
        self.uses += 1
        return super().setdefault(key, default)


@pytest.mark.parametrize(("name", "since"), [("a", 0), (None, 0), (None, 1)])
def test_entry_is_visited_once_for_many_changes(name: str | None, since: int) -> None:
    entries = Entries()
    entries.changes = counted = Counted()
    for number in range(1_000):
        entries.add(Entry("a", [number], number, ""))
        entries.note_change(name, number, since=since)
    for line in range(1_000, 3_000):
        entries.note_change(name, line, since=since)
    assert counted == {number: number for number in range(since, 1_000)}
    assert counted.uses < 20_000


def test_changes_from_different_entries_meet() -> None:
    entries = Entries()
    for number in range(6):
        entries.add(Entry("ab"[number % 2], [number], number, ""))
    entries.note_change("b", 10)
    entries.note_change(None, 11, since=4)
    entries.note_change("a", 12)
    entries.add(Entry("a", [6], 6, ""))
    entries.note_change(None, 13, since=2)
    assert entries.changes == {0: 12, 1: 10, 2: 12, 3: 10, 4: 11, 5: 10, 6: 13}


def test_invalid_escape_is_no_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Python compiles such files, which are common, with a warning."""
    text = "pattern = '\\d'\nbeat_schedule = {'a': {'task': 't', 'schedule': 60}}\n"
    _, jobs = imported("celery", text, tmp_path)
    assert (list(jobs), list(recwarn)) == (["a"], [])


@pytest.mark.parametrize(
    "text",
    [
        "from mylib import register\nregister(app, 't', every=30)\n",
        "@app.on_after_configure.connect\ndef set_up(sender, **_):\n    add(sender, 10, t.s())\n",
        "app.conf.update(load())\n",
        "app.config_from_object('celeryconfig')\n",
        "app.config_from_envvar('CELERY_CONFIG')\n",
    ],
)
def test_schedule_from_elsewhere_is_said(text: str, tmp_path: Path) -> None:
    written, jobs = imported("celery", f"from celery import Celery\napp = Celery()\n{text}", tmp_path)
    assert (jobs, codes(written), written.losses) == ({}, {"call-not-followed"}, 1)


def test_settings_of_the_file_are_read(tmp_path: Path) -> None:
    text = "from celery import Celery\nclass Settings:\n    beat_schedule = {'a': {'task': 't', 'schedule': 5}}\n"
    written, jobs = imported("celery", f"{text}app = Celery()\napp.config_from_object(Settings)\n", tmp_path)
    assert list(jobs) == ["a"]
    assert "call-not-followed" not in codes(written)


def test_settings_of_an_application_are_read(tmp_path: Path) -> None:
    """A class in a file that also connects to the environment, to a broker and to settings of others."""
    written, jobs = imported("celery", (SAMPLES / "settings_class.py.txt").read_text(), tmp_path, timezone=None)
    assert {name: (job.schedule, job.function, job.timezone) for name, job in jobs.items()} == {
        "alerts.send": ("* * * * *", "alerts.send", "UTC"),
        "alerts.prune-log": ("10 0 * * *", "alerts.prune_log", "UTC"),
        "greet-every-10": ("@every 10s", "greet", "UTC"),
    }
    assert jobs["greet-every-10"].args == ("hello",)
    losses = [(finding.code, finding.source.rpartition(":")[2]) for finding in written.findings if finding.is_loss]
    assert losses == [("call-not-followed", "19")]


def test_zone_that_no_file_names_is_said(tmp_path: Path) -> None:
    written, _ = imported("celery", _entry("crontab(hour=1, minute=0)"), tmp_path, timezone=None)
    assert "timezone-assumed" in codes(written)
    written, jobs = imported("celery", _entry("crontab(hour=1, minute=0)"), tmp_path, timezone="Asia/Tokyo")
    assert (written.losses, jobs["a"].timezone) == (0, "Asia/Tokyo")


def test_file_is_never_executed(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    text = f"open({str(marker)!r}, 'w')\n{_entry(f'open({str(marker)!r}, chr(119))')}"
    imported("celery", text, tmp_path)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("x = 1\nbeat_schedule = {\n", "invalid-python", ":2"),
        ("x = 1\ny = \x00\n", "control-character", ":2"),
        ("(" * 50_000, "", ""),
        ("x = " + "-" * 100_000 + "1", "", ""),
        ("x = " + "[" * 150 + "]" * 150 + "\nbeat_schedule = x.y.\n", "invalid-python", ":2"),
        ("x = " + "9" * 10_000, "invalid-python", ""),
    ],
)
def test_hostile_python_is_refused_with_its_line(tmp_path: Path, text: str, code: str, line: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        imported("celery", text, tmp_path)
    assert code in {"", caught.value.problems[0].code}
    assert f"source{line}" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "a = [1, 1]\n"
        + "".join(f"{chr(98 + n)} = [{chr(97 + n)}] * 9 + [{chr(97 + n)}, {chr(97 + n)}]\n" for n in range(24)),
        "a = 'x' * 10**9\nb = a + a\n",
        "a = b\nb = a\n",
        "a = [a]\n",
        "a = 2\n" + "".join(f"{chr(98 + n)} = {chr(97 + n)} * {chr(97 + n)}\n" for n in range(24)),
        "a = " + " + ".join(["'x'"] * 900) + "\n",
        "a = range(10**12)\n",
        "a = 10**(10**10)\n",
        "a = f'{1:>1000000000}'\n",
    ],
)
def test_exploding_value_is_not_computed(text: str, tmp_path: Path) -> None:
    entry = _entry("5", "'args': [a, z, b, y, x], 'kwargs': {'k': x}")
    written, jobs = imported("celery", text + entry, tmp_path)
    assert list(jobs) == ["a"] or "job-not-registrable" in codes(written)
    assert len(written.text) < 100_000


def test_long_chain_of_operators_is_read_or_refused(tmp_path: Path) -> None:
    for text in ("x = " + "+".join(["1"] * 20_000), "x = " + "a." * 20_000 + "b", "x = " + "not " * 5_000 + "1"):
        assert refused("celery", f"{text}\n{_entry('5')}", tmp_path) <= {"nested-too-deep", "invalid-python"}


def _matches(at: datetime, fields: dict[str, list[int]]) -> bool:
    return (
        at.minute in fields["minute"]
        and at.hour in fields["hour"]
        and at.day in fields["day_of_month"]
        and at.month in fields["month_of_year"]
        and at.isoweekday() % 7 in fields["day_of_week"]
    )


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_lists_keep_their_instants(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    limits = {
        "minute": (0, 59),
        "hour": (0, 23),
        "day_of_week": (0, 6),
        "day_of_month": (1, 31),
        "month_of_year": (1, 12),
    }
    fields = {
        name: data.draw(
            st.one_of(st.just([*range(low, high + 1)]), st.lists(st.integers(low, high), min_size=1, max_size=9))
        )
        for name, (low, high) in limits.items()
    }
    text = _entry(f"crontab({', '.join(f'{name}={values}' for name, values in fields.items())})")
    written, jobs = imported("celery", text, tmp_path_factory.mktemp("celery"))
    if jobs["a"].schedule is None:
        assert codes(written, "a") == {"schedule-not-expressible"}
        return
    for at in instants(jobs["a"], 20):
        assert _matches(at, fields)
    until = instants(jobs["a"], 5)[-1]
    if until - NOW < timedelta(days=40):
        minutes = (NOW + timedelta(minutes=n) for n in range(1, int((until - NOW) / timedelta(minutes=1)) + 1))
        assert [at for at in minutes if _matches(at, fields)] == instants(jobs["a"], 5)


_ROUTED = """
from celery import Celery

app = Celery("shop")

class Queues:
    SLOW = "slow"

app.conf.beat_schedule = {
    "a": {"task": "shop.reports.daily", "schedule": 5},
    "b": {"task": "shop.mail", "schedule": 5},
    "c": {"task": "shop.other", "schedule": 5},
    "d": {"task": "shop.mail", "schedule": 5, "options": {"queue": Queues.SLOW}},
}
"""


@pytest.mark.parametrize(
    "routes",
    [
        'app.conf.task_routes = {"shop.reports.*": {"queue": "reports"}, "shop.mail": "mail"}',
        'CELERY_TASK_ROUTES = ({"shop.mail": {"queue": "mail"}}, ("shop.rep*", "reports"))',
        'app.conf.update(task_routes={"shop.reports.*": "reports", "shop.*l": "mail"})',
        'task_routes = ([("shop.rep*s.", "reports")], {"*.ma": "mail"}, {"shop.mail": "other", "shop.mail*": "other"})',
    ],
)
def test_routes_of_tasks_become_queues(routes: str, tmp_path: Path) -> None:
    written, jobs = imported("celery", f'{_ROUTED}{routes}\ntask_default_queue = "main"', tmp_path)
    assert [jobs[name].queue for name in "abcd"] == ["reports", "mail", "main", "slow"]
    assert written.losses == 0


def test_other_parts_of_a_route_are_said(tmp_path: Path) -> None:
    routes = 'task_routes = {"shop.mail": {"queue": "mail", "priority": 3}, "shop.other": {"queue": os.environ["Q"]}}'
    written, jobs = imported("celery", f"{_ROUTED}{routes}", tmp_path)
    assert jobs["b"].queue == "mail"
    assert codes(written, "b") == {"field-not-supported"}
    assert codes(written, "c") == {"computed-at-run-time"}


@pytest.mark.parametrize(
    "routes",
    [
        "task_routes = make_routes()",
        'task_routes = [{"shop.mail": "mail"}, "shop.routers.choose"]',
        'task_routes = {"shop.mail": "mail"}\nif DEBUG:\n    task_routes = {"shop.mail": "debug"}',
        'from base import *\ntask_routes["shop.mail"] = {"queue": "mail"}',
        'from base import *\ntask_routes.update({"shop.mail": "mail"})',
        'task_default_queue = os.environ["QUEUE"]',
        'task_default_queue = "a"\ntask_default_queue = named()',
        'task_default_queue = "a"\nclass Production:\n    task_default_queue = "b"',
    ],
)
def test_routes_that_are_not_followed_are_said(routes: str, tmp_path: Path) -> None:
    written, jobs = imported("celery", f"{_ROUTED}{routes}", tmp_path)
    assert jobs["b"].queue == jobs["c"].queue == "default"
    assert "computed-at-run-time" in codes(written)


@pytest.mark.parametrize(
    ("text", "queue"),
    [
        ("class Names(object):\n    Q = 'mail'", "mail"),
        ("class Names:\n    Q: str = 'mail'", "mail"),
        ("class Names:\n    Q = 'mail'\nNames.Q = 'other'", "default"),
        ("class Names(Enum):\n    Q = 'mail'", "default"),
        ("class Names:\n    Q = 'mail'\n    if DEBUG:\n        Q = 'other'", "default"),
        ("class Names:\n    Q = 'mail'\nclass Names:\n    Q = 'other'", "default"),
    ],
)
def test_constant_of_a_plain_class_has_a_value(text: str, queue: str, tmp_path: Path) -> None:
    entry = _entry("5", '"options": {"queue": Names.Q}')
    written, jobs = imported("celery", f"{text}\n{entry}", tmp_path)
    assert jobs["a"].queue == queue
    assert (codes(written, "a") == set()) is (queue == "mail")


@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        ('app.signature("shop.t", args=(2,), kwargs={"a": 1})', ("shop.t", (2,), {"a": 1}, "default")),
        ('signature("shop.t", (2,), {"a": 1}, queue="mail")', ("shop.t", (2,), {"a": 1}, "mail")),
        ('shop.t.signature((2,), options={"queue": "mail"}, immutable=True)', ("shop.t", (2,), {}, "mail")),
        ('shop.t.s(2, a=1).set(queue="mail")', ("shop.t", (2,), {"a": 1}, "mail")),
        ("shop.t.si()", ("shop.t", (), {}, "default")),
    ],
)
def test_signature_names_task_and_arguments(signature: str, expected: object, tmp_path: Path) -> None:
    written, jobs = imported("celery", f"sender.add_periodic_task(5, {signature}, name='a')", tmp_path)
    job = jobs["a"]
    assert (job.dag[0].function if job.dag else job.function, job.args, job.input, job.queue) == expected
    assert codes(written, "a") == set()


def test_crontab_from_a_string_keeps_its_order(tmp_path: Path) -> None:
    _, jobs = imported("celery", _entry('crontab.from_string("0 4 2 6 *")'), tmp_path)
    assert jobs["a"].schedule == "0 4 2 6 *"
    written, _ = imported("celery", _entry('crontab.from_string("0 4")'), tmp_path)
    assert codes(written, "a") == {"schedule-not-expressible"}


_READABLE = '"a": {"task": "t.a", "schedule": 60}, "c": {"task": "t.c", "schedule": 90}'


@pytest.mark.parametrize(
    ("mapping", "reported"),
    [
        (f'{{{_READABLE}, "x" * 4: {{"task": "t.b", "schedule": 90}}}}', "'x' * 4"),
        (f'{{{_READABLE}, f"{{PREFIX}}-b": {{"task": "t.b", "schedule": 30}}}}', "PREFIX"),
        (f"{{**BASE, {_READABLE}}}", "BASE"),
        (f"{{{_READABLE}, **base()}}", "base()"),
        (f"{{{_READABLE}}} | BASE", "BASE"),
        (f"dict({{{_READABLE}}}, **BASE)", "BASE"),
        (f'{{{_READABLE}}} if env("BEAT") else {{}}', "inside `if`"),
        (f'{{**({{{_READABLE}}} if env("BEAT") else BASE)}}', "inside `if`"),
        (f'{{{_READABLE}, "b": BASE}}', "BASE"),
    ],
)
@pytest.mark.parametrize(
    "form",
    [
        "beat_schedule = {}",
        "S = {}\nbeat_schedule = S",
        "app.conf.beat_schedule.update({})",
        "app.conf.beat_schedule |= {}",
    ],
)
def test_unreadable_part_costs_no_other_entry(mapping: str, reported: str, form: str, tmp_path: Path) -> None:
    text = f"from other import BASE, PREFIX, app, base, env\ntimezone = 'UTC'\n{form.format(mapping)}\n"
    written, jobs = imported("celery", text, tmp_path)
    assert {name: job.schedule for name, job in jobs.items()} == {"a": "@every 1m", "c": "@every 1m30s"}
    assert any(each.is_loss and reported in each.text for each in written.findings)


_HELPERS = {
    "schedule": "def add(name, task):\n    app.conf.beat_schedule[name] = make(task)\n",
    "update": "def add(name, task):\n    app.conf.beat_schedule.update({name: make(task)})\n",
    "periodic": "def add(name, task):\n    app.add_periodic_task(30, make(task), name=name)\n",
    "name": "S = {}\napp.conf.beat_schedule = S\ndef add(name, task):\n    S[name] = make(task)\n",
}


@pytest.mark.parametrize("helper", list(_HELPERS.values()), ids=list(_HELPERS))
def test_each_call_of_a_helper_is_reported(helper: str, tmp_path: Path) -> None:
    text = f"from other import app, make\ntimezone = 'UTC'\n{helper}add('a', 't.a')\nadd('b', 't.b')\n"
    written, _ = imported("celery", text, tmp_path)
    for call in ("add('a', 't.a')", "add('b', 't.b')"):
        assert any(each.is_loss and call in each.text for each in written.findings), call


def test_schedule_that_a_function_takes_is_reported(tmp_path: Path) -> None:
    body = "def put(schedule, name):\n    schedule[name] = make(name)\nput(app.conf.beat_schedule, 'a')\n"
    written, jobs = imported("celery", f"from other import app, make\ntimezone = 'UTC'\n{body}", tmp_path)
    assert jobs == {}
    assert any(each.is_loss and "put(app.conf.beat_schedule, 'a')" in each.text for each in written.findings)


def test_mapping_in_many_mappings_is_read_once(tmp_path: Path) -> None:
    names = [f"A{n}" for n in range(40)]
    chain = "".join(f"{name} = {{**{after}, **{after}}}\n" for name, after in pairwise(names))
    text = (
        f"from other import BASE\ntimezone = 'UTC'\n{names[-1]} = {{**BASE, {_READABLE}}}\n{chain}beat_schedule = A0\n"
    )
    written, jobs = imported("celery", text, tmp_path)
    assert list(jobs) == ["a", "c"]
    assert len(written.findings) < 10
