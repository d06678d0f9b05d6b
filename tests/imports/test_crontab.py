"""Crontabs: each line becomes a job with the same instants, and what is missing is said."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.imports.given import SAMPLES, codes, imported, instants, vixie
from tests.properties import examples
from tocsin.adapters.imports.crontab import looks_like_system, program_of
from tocsin.domain.definition import DefinitionError, JobDefinition
from tocsin.domain.template import render


def test_user_crontab_keeps_every_instant(tmp_path: Path) -> None:
    written, jobs = imported("crontab", (SAMPLES / "user.crontab").read_text(), tmp_path, timezone=None)
    expected = {
        "pg-dump": ("30 2 * * *", "Europe/Berlin"),
        "rotate-logs": ("0,30 1-5 * * *", "Europe/Berlin"),
        "manage": ("*/15 * * * *", "Europe/Berlin"),
        "mail": ("0 9 1,15 * 5", "Europe/Berlin"),
        "sync": ("0 8-18/2 * jan-jun mon-fri", "Europe/Berlin"),
        "monthly": ("15 4 1-7 * */7", "Europe/Berlin"),
        "artisan": ("0 0 * * 0", "Europe/Berlin"),
        "close-of-business": ("30 1 * * *", "America/New_York"),
        "poll": ("*/20 1-3 * * *", "America/New_York"),
    }
    assert jobs.keys() == expected.keys() | {"worker"}
    for name, (expression, zone) in expected.items():
        for start in (2026, 3, 27), (2026, 10, 23):
            assert instants(jobs[name], after=_day(*start)) == vixie(expression, zone, after=_day(*start)), name
    assert jobs["monthly"].schedule == "15 4 * * 0#1"
    assert jobs["worker"].schedule is None
    assert codes(written) >= {"reboot-not-supported", "mail-not-supported", "schedule-rewritten"}
    assert "timezone-assumed" not in codes(written)
    assert "mail-not-supported" not in codes(written, "poll")


def _day(year: int, month: int, day: int) -> datetime:
    return datetime(year, month, day, tzinfo=UTC)


def test_system_crontab_names_the_user(tmp_path: Path) -> None:
    written, jobs = imported("crontab", (SAMPLES / "system.crontab").read_text(), tmp_path, timezone="Europe/Berlin")
    assert [job.schedule for job in jobs.values()] == [
        "17 * * * *",
        "25 6 * * *",
        "47 6 * * 7",
        "52 6 1 * *",
        "*/5 * * * *",
        "09,39 * * * *",
        "30 3 * * 0",
        "0 */12 * * *",
    ]
    for job in jobs.values():
        assert instants(job) == vixie(job.schedule or "", "Europe/Berlin")
    users = [finding.text for finding in written.findings if finding.code == "user-not-supported"]
    assert len(users) == len(jobs)
    assert "www-data" in users[4]
    assert "system-crontab" in codes(written)


def test_crontab_with_tabs_names_the_user(tmp_path: Path) -> None:
    written, jobs = imported("crontab", (SAMPLES / "bsd.crontab").read_text(), tmp_path)
    assert {name: job.schedule for name, job in jobs.items()} == {
        "queue": "*/5 * * * *",
        "rotate": "0 * * * *",
        "maintain": "1 3 * * *",
        "maintain-2": "15 4 * * 6",
        "maintain-3": "30 5 1 * *",
        "setclock": "1,31 0-5 * * *",
    }
    command = jobs["setclock"].command
    assert command is not None
    assert (command.script, command.env["HOME"]) == ("setclock -a", "/var/log")
    assert all(codes(written, name) == {"user-not-supported"} for name in jobs)
    for job in jobs.values():
        assert instants(job) == vixie(job.schedule or "", "UTC")


def test_crontab_of_a_site_has_no_user(tmp_path: Path) -> None:
    written, jobs = imported("crontab", (SAMPLES / "site.crontab").read_text(), tmp_path)
    assert {name: job.schedule for name, job in jobs.items()} == {
        "run": "*/5 * * * *",
        "run-2": "*/6 * * * *",
        "parse-log": "23 * * * *",
        "make-xml": "33 21 * * *",
        "weekly": "30 3 * * 6",
    }
    command = jobs["weekly"].command
    assert command is not None
    assert command.script == "/etc/weekly > /var/log/weekly.out 2>&1"
    assert command.env.keys() == {"SITE_ENV", "GEM_HOME", "PATH"}
    assert (written.losses, codes(written)) == (
        0,
        {"no-time-limit", "working-folder", "output-not-mailed", "command-settings"},
    )


def test_command_is_a_script_with_its_variables(tmp_path: Path) -> None:
    text = "SHELL=/bin/bash\nGREETING = 'hello {{ there }} ${X}'\n0 5 * * * date +\\%F; echo {{ x }} ${HOME}\n"
    _, jobs = imported("crontab", text, tmp_path)
    command = jobs["date"].command
    assert command is not None
    assert (command.script, command.interpreter) == ("date +%F; echo {{ x }} ${HOME}", ("/bin/bash",))
    assert render(command.env["GREETING"], {}, limit=1_000) == "hello {{ there }} $${X}"


def test_percent_signs_are_the_standard_input(tmp_path: Path) -> None:
    text = "0 5 * * * cat - ; exit 3 # end%one \\%%END_OF_INPUT%$HOME `id`%\n0 6 * * * cat -\n"
    _, jobs = imported("crontab", text, tmp_path)
    command = jobs["cat"].command
    assert command is not None
    assert command.script is not None
    result = subprocess.run(["/bin/sh", "-c", command.script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (3, "one %\nEND_OF_INPUT\n$HOME `id`\n")


@pytest.mark.parametrize(
    ("command", "output"),
    [
        (r"printf 'a\\'; cat -%in", "a\\in\n"),
        (r"cat - ; printf x\\%in", "in\nx\\"),
        (r"printf 'a\%\%b'", "a%b"),
        (r"cat -%one%two%", "one\ntwo\n"),
        (r"cat -%one%%", "one\n\n"),
        (r"cat -%a\\%b", "a\\%b\n"),
        ("cat -%", ""),
    ],
)
def test_percent_sign_after_backslashes_is_read_as_cron(command: str, output: str, tmp_path: Path) -> None:
    _, jobs = imported("crontab", f"0 5 * * * {command}\n", tmp_path)
    (job,) = jobs.values()
    assert job.command is not None
    assert job.command.script is not None
    result = subprocess.run(["/bin/sh", "-c", job.command.script], capture_output=True, text=True, check=False)
    assert result.stdout == output


def test_unknown_shell_gets_no_standard_input(tmp_path: Path) -> None:
    written, _ = imported("crontab", "SHELL=/usr/bin/fish\n0 5 * * * cat%one\n", tmp_path)
    assert "stdin-not-supported" in codes(written, "cat")


def test_a_later_variable_changes_no_earlier_entry(tmp_path: Path) -> None:
    _, jobs = imported("crontab", "A=1\n0 5 * * * first\nA=2\nCRON_TZ=Asia/Tokyo\n0 5 * * * second\n", tmp_path)
    assert (_env(jobs["first"]), _env(jobs["second"])) == ({"A": "1"}, {"A": "2"})
    assert (jobs["first"].timezone, jobs["second"].timezone) == ("UTC", "Asia/Tokyo")


def test_name_that_no_variable_has_is_said(tmp_path: Path) -> None:
    written, jobs = imported("crontab", "a-b=1\nTOCSIN_JOB=2\nC=3\n0 5 * * * first\n", tmp_path)
    assert _env(jobs["first"]) == {"C": "3"}
    assert "environment-not-supported" in codes(written, "first")


def test_tz_is_the_zone_of_commands(tmp_path: Path) -> None:
    written, jobs = imported("crontab", "TZ=Asia/Tokyo\n0 5 * * * report\n", tmp_path)
    assert jobs["report"].timezone == "UTC"
    assert _env(jobs["report"]) == {"TZ": "Asia/Tokyo"}
    assert "zone-of-commands" in codes(written, "report")


def _env(job: JobDefinition) -> dict[str, str]:
    assert job.command is not None
    return job.command.env


def test_settings_of_a_worker_are_said(tmp_path: Path) -> None:
    written, _ = imported("crontab", "SHELL=/bin/bash\nPATH=/bin\n0 5 * * * first\n", tmp_path)
    note = next(finding.text for finding in written.findings if finding.code == "command-settings")
    assert "{ interpreters: [/bin/bash], variables: [PATH] }" in note


def test_home_is_the_working_folder(tmp_path: Path) -> None:
    written, jobs = imported("crontab", "HOME=/var/log/\n0 5 * * * ./first $HOME ~/bin\n", tmp_path)
    command = jobs["first"].command
    assert command is not None
    assert (command.cwd, command.env) == ("/var/log", {"HOME": "/var/log/"})
    note = next(finding.text for finding in written.findings if finding.code == "command-settings")
    assert "{ interpreters: [/bin/sh], directories: [/var/log], variables: [HOME] }" in note
    assert codes(written).isdisjoint({"working-folder", "environment-not-supported"})


@pytest.mark.parametrize("line", ["", "HOME=/", "HOME=here", "HOME=/a/../b", "HOME=/a/${env:B}", "HOME="])
def test_unknown_working_folder_is_said(line: str, tmp_path: Path) -> None:
    written, jobs = imported("crontab", f"{line}\n0 5 * * * first\n", tmp_path)
    command = jobs["first"].command
    assert command is not None
    assert command.cwd is None
    assert "working-folder" in codes(written)


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("$HOME/bin/first >> $HOME/tmp/out", ["HOME"]),
        ("cd ~ && first", ["HOME"]),
        ("first --dir=~/x", ["HOME"]),
        ('first "${HOME:-/}" ${LOGNAME} $USER', ["HOME", "LOGNAME", "USER"]),
        ("first a~b x~ $HOMEPAGE", []),
    ],
)
def test_variable_of_the_user_is_said(command: str, names: list[str], tmp_path: Path) -> None:
    written, _ = imported("crontab", f"0 5 * * * {command}\n", tmp_path)
    said = [finding.text for finding in written.findings if finding.code == "environment-not-supported"]
    assert [text.split()[2] for text in said] == names


def test_what_cron_does_otherwise_is_written(tmp_path: Path) -> None:
    _, jobs = imported("crontab", "0 5 * * * report\n", tmp_path)
    job = jobs["report"]
    assert (job.overlap_policy, job.catch_up, job.retry.max_attempts, job.timeout) == ("allow", "skip", 1, 86_400.0)


def test_odd_entries_are_said(tmp_path: Path) -> None:
    written, jobs = imported("crontab", (SAMPLES / "odd.crontab").read_text(), tmp_path)
    assert {name: job.schedule for name, job in jobs.items()} == {
        "on-odd-mondays": None,
        "at-a-random-minute": None,
        "step-without-a-range": None,
        "never": None,
        "no-such-day": None,
        "large-step": "0 * * * *",
        "every-day": "0 0 * * *",
        "quiet": "0 5 * * *",
        "elsewhere": None,
    }
    assert codes(written, "on-odd-mondays") >= {"schedule-not-expressible"}
    assert codes(written, "at-a-random-minute") >= {"random-delay-not-supported"}
    assert codes(written, "elsewhere") >= {"timezone-unknown"}
    assert codes(written, "quiet") >= {"log-not-quiet"}
    unreadable = [
        finding.source.rpartition(":")[2] for finding in written.findings if finding.code == "entry-not-readable"
    ]
    assert unreadable == ["5", "7"]
    assert "# schedule-not-expressible: `0 0 */2 * 1`" in written.text


def test_zone_that_no_line_names_is_said(tmp_path: Path) -> None:
    written, _ = imported("crontab", "0 5 * * * report\n", tmp_path, timezone=None)
    assert {finding.code for finding in written.findings if finding.is_loss} == {"timezone-assumed"}
    given, jobs = imported("crontab", "0 5 * * * report\n", tmp_path, timezone="Europe/Berlin")
    assert given.losses == 0
    assert jobs["report"].timezone == "Europe/Berlin"


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("/etc/crontab", "0 5 * * * deploy run\n", True),
        ("/etc/cron.d/app", "0 5 * * * deploy run\n", True),
        ("mine", "0 5 * * * deploy run\n", False),
        ("mine", "0 5 * * * root run\n", True),
        ("mine", "0 5 * * * root run\n0 6 * * * python x.py\n", False),
        ("mine", "", False),
    ],
)
def test_system_format_is_recognized(path: str, text: str, expected: object) -> None:
    assert looks_like_system(path, text) is expected


def test_account_in_a_user_crontab_is_said(tmp_path: Path) -> None:
    text = "17 * * * * root run-parts /etc/cron.hourly\n0 6 * * * deploy run\n"
    written, _ = imported("crontab", text, tmp_path)
    assert "user-crontab" in codes(written)
    for is_system in (False, True):
        written, jobs = imported("crontab", text, tmp_path, is_system=is_system)
        assert not {"user-crontab", "system-crontab"} & codes(written)
        assert ("run" in jobs) is is_system


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("cd /srv && ./run.sh --now", "run"),
        ("test -x /bin/a || exit; /bin/b", "b"),
        ("/usr/bin/env python3.11 /srv/app/job.py", "job"),
        ("FOO=1 nice -n 5 sudo flock -n /tmp/x rsync -a x y", "rsync"),
        ("python", "python"),
        ("'unclosed", "unclosed"),
        ("", "command"),
    ],
)
def test_job_is_named_after_its_program(command: str, name: str) -> None:
    assert program_of(command) == name


def test_names_are_valid_and_unique(tmp_path: Path) -> None:
    _, jobs = imported("crontab", "0 5 * * * /a/Réport_1!\n0 6 * * * /b/Réport_1!\n0 7 * * * report-1-2\n", tmp_path)
    assert len(jobs) == 3


@pytest.mark.parametrize(
    ("content", "code", "line"),
    [
        (b"0 5 * * * a\n0 6 * * * b\x00\n", "control-character", ":2"),
        (b"0 5 * * * a\x1b[2J\n", "control-character", ":1"),
        (b"0 5 * * * a\n0 6 * * * \xff\n", "not-utf8", "line 2"),
        (b"0 5 * * * " + b"a" * 2_000_000, "file-too-large", ""),
        (b"* * * * * a\n" * 10_001, "too-large", ":10001"),
        (b"".join(b"A%d=1\n" % n for n in range(1_001)), "too-large", ":1001"),
        (b"".join(b"A%d=1\n" % n for n in range(1_000)) + b"* * * * * a\n" * 101, "too-large", ":1101"),
    ],
)
def test_hostile_file_is_refused_with_its_line(tmp_path: Path, content: bytes, code: str, line: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        imported("crontab", content, tmp_path)
    assert [problem.code for problem in caught.value.problems] == [code]
    assert "source" in str(caught.value)
    assert line in str(caught.value)


def test_crontab_without_entries_is_said(tmp_path: Path) -> None:
    written, jobs = imported("crontab", "# only a comment\nSHELL=/bin/sh\n", tmp_path)
    assert (jobs, codes(written)) == ({}, {"document-skipped"})


def test_comment_cannot_become_yaml(tmp_path: Path) -> None:
    text = "0 5 * * * a\u2028- name: evil\n0 6 * * * b\x85  function: evil\r\n"
    _, jobs = imported("crontab", text, tmp_path)
    assert all(job.function != "evil" for job in jobs.values())
    assert "evil" not in jobs


def test_command_that_is_too_large_is_a_comment(tmp_path: Path) -> None:
    written, jobs = imported("crontab", f"0 5 * * * a\n0 6 * * * b {'x' * 70_000}\n", tmp_path)
    assert list(jobs) == ["a"]
    assert "job-not-registrable" in codes(written)


def test_ten_thousand_entries_of_one_name(tmp_path: Path) -> None:
    text = "0 5 * * * a\n" * 2_000
    written, jobs = imported("crontab", text, tmp_path)
    assert len(jobs) == 2_000
    assert "a-2000" in jobs
    assert written.losses == 0


def _field(low: int, high: int, names: tuple[str, ...] = ()) -> st.SearchStrategy[str]:
    value = st.integers(low, high).map(str)
    if names:
        value = st.one_of(value, st.sampled_from(names))
    ends = st.tuples(st.integers(low, high), st.integers(low, high)).map(sorted)
    span = ends.filter(lambda pair: pair[0] < pair[1]).map(lambda pair: f"{pair[0]}-{pair[1]}")
    step = st.integers(1, high - low + 1)
    stepped = st.tuples(st.one_of(span, st.just("*")), step).map(lambda pair: f"{pair[0]}/{pair[1]}")
    items = st.lists(st.one_of(value, span, stepped), min_size=1, max_size=3).map(",".join)
    return st.one_of(st.just("*"), st.just("*"), value, stepped, items)


_LINES = st.tuples(
    _field(0, 59),
    _field(0, 23),
    _field(1, 31),
    _field(1, 12, ("jan", "Dec")),
    _field(0, 6, ("mon", "SUN")),
)


@settings(max_examples=examples(150), deadline=None)
@given(fields=_LINES, zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Tokyo"]))
def test_any_line_keeps_its_instants(
    fields: tuple[str, ...], zone: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    expression = " ".join(fields)
    written, jobs = imported("crontab", f"CRON_TZ={zone}\n{expression} run\n", tmp_path_factory.mktemp("line"))
    job = jobs["run"]
    if job.schedule is None:
        assert codes(written, "run") >= {"schedule-not-expressible"}
        return
    assert instants(job, 30) == vixie(expression, zone, 30), (expression, job.schedule)


_SIXTH = (
    *("*", "?", "*/2", "?/2", "5", "1-5", "2,4", "1-5/2", "2026", "2026-2030", "0~6", "1,*/2"),
    *(
        "L",
        "l",
        "6L",
        "7l",
        "W",
        "1W",
        "LW",
        "L-3",
        "6#3",
        "2#1,4#3",
        "5#L",
        "H",
        "h",
        "H/2",
        "H(1-5)",
        "h(0-29)/10",
        "R(0-59)",
    ),
    *(
        "MON",
        "Mon",
        "mon",
        "monday",
        "Monday",
        "SATURDAY",
        "TUES",
        "Thur",
        "MON-FRI",
        "mon,wed",
        "mon-fri",
        "Monday-Friday",
    ),
    *("MON#2", "mon#2", "FRIL", "friL", "MON-FRI/2", "SUN/2", "MON-FRI,SUN", "MON,WED#2", "MON,"),
)


@pytest.mark.parametrize("sixth", _SIXTH)
@pytest.mark.parametrize(
    ("times", "command"), [("0 0 12 ? *", "./x"), ("0 15 10 * *", "2026 ./x"), ("*/10 * * * *", "")]
)
def test_line_with_a_sixth_field_is_reported(times: str, sixth: str, command: str, tmp_path: Path) -> None:
    """Such a line read as five fields would run at other times, with a script that begins with a field."""
    for is_system in (False, True, None):
        text = f"{times} {sixth} {command}\n30 4 * * * root daily\n"
        written, jobs = imported("crontab", text, tmp_path, is_system=is_system)
        assert [job.schedule for job in jobs.values()] == ["30 4 * * *"]
        [finding] = [each for each in written.findings if each.code == "entry-not-readable"]
        assert finding.source.endswith(":1")
        assert f'"{sixth}"' in finding.text


@pytest.mark.parametrize(
    "command",
    [
        *(
            "h2load -n 1 x",
            "lwp-request x",
            "monitor",
            "./l",
            "./mon",
            "/usr/bin/mon",
            "w",
            "w -h",
            "monit",
            "sunday.sh",
            "R CMD BATCH x",
        ),
        *(
            "7z a x y",
            "2to3 .",
            "who",
            "ls -L",
            "last",
            "hourly",
            "l2ping",
            "satis build",
            "fridayd",
            "lw-agent",
            "~/l",
            "(l)",
            "wl up",
        ),
        *("x 6L", "mon.sh", "mon/run", "sun-sync", "thumbs", "[ -f /x ] && y"),
    ],
)
def test_command_that_resembles_a_field_is_kept(command: str, tmp_path: Path) -> None:
    written, jobs = imported("crontab", f"15 4 * * 1 {command}\n", tmp_path, is_system=False)
    [job] = jobs.values()
    assert (job.schedule, job.command.script if job.command else None) == ("15 4 * * 1", command)
    assert "entry-not-readable" not in codes(written)


_INVISIBLE = ("\u00a0", "\f", "\u0085", "\v", "\u2028", "\u3000", "\u00a0 \f", "\ufeff", "\u200b")


@pytest.mark.parametrize("blank", _INVISIBLE)
@pytest.mark.parametrize(
    "line", ["0 7 * * * {}{}", "@daily {}{}", "-0 7 * * * {}{} ", "0 7 * * * {}-q {}", "0 7 * * * {}{}%input"]
)
def test_command_of_odd_white_space_is_no_command(line: str, blank: str, tmp_path: Path) -> None:
    for is_system, user in ((False, ""), (True, "root "), (None, ""), (None, "root ")):
        text = f"{line.format(user, blank)}\n30 4 * * * root daily\n"
        written, jobs = imported("crontab", text, tmp_path, is_system=is_system)
        [finding] = [each for each in written.findings if each.code == "entry-not-readable"]
        assert finding.source.endswith(":1")
        assert "no command" in finding.text
        assert [job.schedule for job in jobs.values()] == ["30 4 * * *"]


@pytest.mark.parametrize("space", ["\u00a0", "\u3000", "\u2028", "\v"])
def test_odd_white_space_in_a_command_is_reported(space: str, tmp_path: Path) -> None:
    written, jobs = imported("crontab", f"0 5 * * * /opt/a{space}--fast\n", tmp_path)
    assert len(jobs) == 1
    [finding] = [each for each in written.findings if each.code == "odd-white-space"]
    assert f"U+{ord(space):04X}" in finding.text


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_of_other_systems_divide_entries(end: str, tmp_path: Path) -> None:
    _, jobs = imported("crontab", end.join(["# mine", "0 5 * * * a", "", "0 6 * * * b", ""]), tmp_path)
    assert {name: (job.schedule, job.command.script if job.command else None) for name, job in jobs.items()} == {
        "a": ("0 5 * * *", "a"),
        "b": ("0 6 * * *", "b"),
    }


def test_openbsd_flags_leave_the_command(tmp_path: Path) -> None:
    text = "0 1 * * * -q quiet\n0 2 * * * -n\tmail\n0 3 * * * -ns /bin/x -s\n@daily -s -q twice\n0 4 * * * -x other\n"
    written, jobs = imported("crontab", text, tmp_path)
    assert {name: job.command.script if job.command else None for name, job in jobs.items()} == {
        "quiet": "quiet",
        "mail": "mail",
        "x": "/bin/x -s",
        "twice": "twice",
        "other": "-x other",
    }
    assert {name: job.overlap_policy for name, job in jobs.items() if job.overlap_policy != "allow"} == {
        "x": "skip",
        "twice": "skip",
    }
    named = {"log-not-quiet", "mail-not-supported", "single-instance"}
    assert {name: codes(written, name) & named for name in jobs} == {
        "quiet": {"log-not-quiet"},
        "mail": {"mail-not-supported"},
        "x": {"mail-not-supported", "single-instance"},
        "twice": {"log-not-quiet", "single-instance"},
        "other": set(),
    }


def test_prose_between_entries_makes_no_job(tmp_path: Path) -> None:
    text = "0 * * * * play intro.wav\n\nThis table will play `intro.wav` at each full hour.\nNotes: see the wiki\n"
    written, jobs = imported("crontab", text, tmp_path)
    assert [job.schedule for job in jobs.values()] == ["0 * * * *"]
    assert [each.source[-2:] for each in written.findings if each.code == "entry-not-readable"] == [":3", ":4"]
