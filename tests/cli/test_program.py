"""The program as a whole: global options anywhere, exit codes, errors as one sentence, and the small commands."""

import asyncio
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cli.conftest import World
from tests.worker.given import Bench
from tocsin import Worker, __version__
from tocsin.cli.command_tree import hoisted
from tocsin.cli.processes.commands import select_stages
from tocsin.cli.runtime.error_report import failure_of
from tocsin.cli.runtime.errors import MEANINGS, Exit, UsageError
from tocsin.ports import LogUnavailable

STAGES = ("registrar", "ticker", "lock_keeper")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("jobs list", "jobs list"),
        ("jobs list --output json", "--output json jobs list"),
        ("jobs list -o json --tag x", "-o json jobs list --tag x"),
        ("jobs list --nats=nats://a", "--nats=nats://a jobs list"),
        ("--root r jobs show x", "--root r jobs show x"),
        ("jobs show -- --output", "jobs show -- --output"),
        ("jobs list --output", "jobs list --output"),
        ("jobs export -o jobs.yaml", "jobs export -o jobs.yaml"),
        ("jobs export -o ./jobs -o json", "-o json jobs export -o ./jobs"),
        ("jobs export -o yaml", "-o yaml jobs export"),
    ],
)
def test_global_options_may_stand_anywhere(given: str, expected: str) -> None:
    assert hoisted(given.split()) == expected.split()


def test_options_of_the_command_line_reach_the_settings(world: World) -> None:
    world.call("jobs", "list", "--nats", "nats://a:1", "--root", "other")
    assert (world.used[-1].nats.url, world.used[-1].root) == ("nats://a:1", "other")


def test_help_lists_exit_codes_and_global_options(world: World) -> None:
    result = world.call("--help")
    assert result.code == 0
    assert all(meaning.split()[0] in result.out for meaning in MEANINGS.values())
    assert "--nats URL" in world.call("jobs", "list", "--help").out


def test_version_is_also_an_option(world: World) -> None:
    assert world.call("--version").out == world.call("version").out == f"tocsin {__version__}\n"


def test_help_wraps_at_the_width_of_the_terminal(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert "removed beginning. Work in progress is not a violation. Exits" in world.call("audit", "--help").out


def test_repeatable_options_say_so_once(world: World) -> None:
    assert "[OPTIONS] {EXECUTION}..." in world.call("executions", "cancel", "--help").out
    assert "[OPTIONS] [STAGE]..." in world.call("run", "--help").out


def test_flags_show_no_type_in_the_help(world: World) -> None:
    assert "<bool>" not in world.call("dev", "--help").out + world.call("jobs", "delete", "--help").out


@pytest.mark.parametrize(
    ("args", "fields"),
    [
        (("--ephemeral", "--data-dir", "x"), ("--ephemeral", "--data-dir")),
        (("--port", "4333", "--nats", "nats://a:1"), ("--port", "--nats")),
        (("--cluster", "3", "--nats", "nats://a:1"), ("--cluster", "--nats")),
    ],
)
def test_dev_refuses_contradicting_options(args: tuple[str, ...], fields: tuple[str, ...], world: World) -> None:
    failed = world.call("dev", *args, "-o", "json")
    assert (failed.code, failed.error["error_code"]) == (2, "conflicting-options")
    assert all(field in failed.error["message"] for field in fields)


def test_execution_id_given_as_job_name_is_recognized(world: World) -> None:
    some = "01a20027-d460-792c-b733-ce0f23d79a99"
    result = world.call("why", some, "-o", "json")
    assert result.failure == (3, "job-not-found")
    assert f"tocsin executions show {some}" in result.error["message"]


def test_wrong_choice_is_explained_without_parser_jargon(world: World) -> None:
    result = world.call("jobs", "list", "-o", "xml")
    assert result.err.strip() == "error: Invalid value for '--output' / '-o': 'xml' is not one of 'table', 'json'."


@pytest.mark.parametrize(
    "args", [("jobs", "lits"), ("jobs", "list", "--outptu", "json"), ("jobs", "show"), ("jobs", "list", "-o", "xml")]
)
def test_a_wrong_use_is_2_and_one_sentence(args: tuple[str, ...], world: World) -> None:
    result = world.call(*args)
    assert result.code == 2
    assert result.err.startswith("error: ")
    assert "Traceback" not in result.err


@pytest.mark.parametrize("args", [(), ("jobs",), ("dead-letters",)])
def test_without_a_command_only_the_help_is_printed(args: tuple[str, ...], world: World) -> None:
    result = world.call(*args)
    assert result.code == 2
    assert "Usage: tocsin" in result.out + result.err
    assert "error" not in result.err
    assert "Traceback" not in result.err


def test_failure_before_option_parsing_writes_no_log(world: World) -> None:
    result = world.call("--verison")
    assert (result.code, result.out, result.err.strip()) == (
        2,
        "",
        "error: No such option: --verison (Possible options: --version)",
    )


def test_a_server_that_does_not_answer_is_4(world: World) -> None:
    world.reachable = False
    result = world.call("jobs", "list", "--nats", "nats://a:1", "-o", "json")
    assert result.failure == (4, "unreachable")


def test_missing_setup_is_reported_with_the_remedy(world: World) -> None:
    world.projections = type(world.projections)(world.clock)
    failed = world.call("jobs", "list", "-o", "json")
    assert (failed.code, failed.error["error_code"]) == (4, "not-initialized")
    assert "run `tocsin init`" in failed.error["message"]


def test_a_broken_configuration_is_2(world: World) -> None:
    (world.folder / "tocsin.yaml").write_text("leader: { tll: 3s }")
    result = world.call("jobs", "list", "-o", "json")
    assert result.failure == (2, "invalid-settings")
    assert all(part in result.error["message"] for part in ("tocsin.yaml", "`leader.tll`", "`leader.ttl`"))


def test_traceback_is_printed_only_on_request(world: World) -> None:
    world.reachable = False
    assert "Traceback" in world.call("jobs", "list", "--log-level", "debug").err


def test_first_of_several_failures_is_reported() -> None:
    failures = ExceptionGroup("stages", [ExceptionGroup("loops", [LogUnavailable("no leader")]), ValueError("later")])
    assert failure_of(failures).message.startswith("the log cannot be reached: no leader")
    assert failure_of(ValueError("what?")).code == 6


@pytest.mark.parametrize(
    ("args", "code", "error_code"),
    [
        (("jobs", "lits"), Exit.USAGE, "usage"),
        (("jobs", "show", "missing"), Exit.NOT_FOUND, "job-not-found"),
        (("executions", "show", "0193a5b0-0000-7000-8000-000000000001"), Exit.NOT_FOUND, "not-found"),
        (("executions", "list"), Exit.UNREACHABLE, "history-not-found"),
        (("executions", "list", "--all", "--limit", "3"), Exit.USAGE, "conflicting-options"),
        (("executions", "list", "--since", "soon"), Exit.USAGE, "invalid-time"),
        (("explain", "0 25 * * *"), Exit.USAGE, "invalid-field"),
        (("run", "tickr"), Exit.USAGE, "unknown-stage"),
        (("dead-letters", "replay-all"), Exit.USAGE, "confirmation-required"),
    ],
)
def test_json_error_has_stable_code(args: tuple[str, ...], code: Exit, error_code: str, world: World) -> None:
    failed = world.call(*args, "-o", "json")
    assert failed.code == code
    assert (failed.error["code"], failed.error["kind"]) == (code.value, code.name.lower())
    assert failed.error["error_code"] == error_code


def test_version(world: World) -> None:
    assert world.call("version").out.strip() == f"tocsin {__version__}"
    assert world.call("version", "-o", "json").json["tocsin"] == __version__


def test_init_says_what_changed(world: World) -> None:
    result = world.call("init")
    assert result.out.splitlines() == [
        "stream TOCSIN_LOG: created",
        "stream TOCSIN_LEDGER: updated (num_replicas 1 → 3)",
        "2 changed, 1 unchanged",
    ]
    assert [one["action"] for one in world.call("init", "-o", "json").json] == ["created", "updated", "unchanged"]


def test_init_plans_and_changes_nothing(world: World) -> None:
    world.loss = "max_bytes 5 removes the oldest of 6 bytes"
    result = world.call("init", "--plan")
    assert result.out.splitlines() == [
        "stream TOCSIN_LOG: to be created",
        "stream TOCSIN_LEDGER: to be updated (num_replicas 1 → 3); max_bytes 5 removes the oldest of 6 bytes",
        "2 to change, 1 unchanged",
    ]
    assert world.call("init", "--plan", "-o", "json").json[1]["loss"] == world.loss


def test_init_keeps_messages_by_default(world: World) -> None:
    world.loss = "max_bytes 5 removes the oldest of 6 bytes"
    refused = world.call("init")
    assert refused.code == 2
    assert "TOCSIN_LEDGER: max_bytes 5 removes the oldest of 6 bytes" in refused.err
    assert "--drop-messages" in refused.err
    assert world.call("init", "--drop-messages").out.splitlines()[-1] == "2 changed, 1 unchanged"


def test_config_show_prints_sources_and_no_secrets(world: World) -> None:
    (world.folder / "tocsin.yaml").write_text("nats: { user: me, password: hunter2 }")
    result = world.call("config", "show", "--root", "other")
    assert "hunter2" not in result.out
    shown = world.call("config", "show", "--root", "other", "-o", "json").json
    assert shown["root"] == {"value": "other", "origin": "command line"}
    assert shown["nats.password"] == {"value": "******", "origin": "tocsin.yaml"}
    assert shown["leader.ttl"] == {"value": "4s", "origin": "default"}


@pytest.mark.parametrize("output", ["table", "json"])
def test_closed_pipe_is_reported_with_its_code(output: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program = "from tocsin.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "explain", "every day at 9am", "-o", output],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    os.close(writer)
    assert done.returncode == Exit.INTERRUPTED
    if output == "json":
        assert json.loads(done.stderr)["error"]["error_code"] == "output-closed"


def test_explanation_keeps_to_calendars(world: World) -> None:
    path = world.folder / "calendars.yaml"
    path.write_text("calendars: {first: [2090-01-01], late: {days: [2090-01-01/2090-01-10], until: 2090-12-31}}")
    given = ("explain", "at 2090-01-01T09:00", "-f", str(path), "-o", "json")
    assert world.call(*given, "--only", "late").json["next"] == ["2090-01-01T09:00:00Z"]
    moved = world.call(*given, "--exclude", "first", "--exclude", "late", "--shift", "next_business_day").json
    assert moved["next"] == ["2090-01-11T09:00:00Z"]
    assert world.call(*given, "--exclude", "none").error["error_code"] == "invalid-definition"
    assert world.call(*given[:3], "nowhere.yaml", "-o", "json").code == 2


def test_explanation_of_a_job_keeps_to_its_calendars(world: World) -> None:
    path = world.jobs("""
calendars: { first: [2090-01-01], late: [2090-01-02] }
jobs:
  - { name: moved, function: f, schedule: "at 2090-01-01T09:00", timezone: Europe/Prague, exclude: [first, late], shift: next_business_day }
  - { name: kept, function: f, schedule: "0 9 * * *", timezone: Europe/Prague, only: [first, late] }
  - { name: closed, function: f, schedule: "0 9 1 1 *", timezone: Europe/Prague, blackout: [{ from: 2026-01-01T00:00, to: 2089-01-02T00:00, reason: x }] }
  - { name: often, function: f, schedule: "@every 90s" }
  - { name: paused, function: f, schedule: "@daily" }
  - { name: manual, function: f }
""")
    assert world.call("jobs", "apply", "-f", path).code == 0
    assert world.call("jobs", "pause", "paused").code == 0
    explained = {name: world.call("explain", name, "-o", "json").json for name in ("moved", "kept", "closed", "paused")}
    assert explained["moved"]["next"] == ["2090-01-03T08:00:00Z"]
    assert explained["kept"]["next"] == ["2090-01-01T08:00:00Z", "2090-01-02T08:00:00Z"]
    assert explained["closed"]["next"][0] == "2090-01-01T08:00:00Z"
    assert (explained["closed"]["text"], explained["closed"]["timezone"]) == ("0 9 1 1 *", "Europe/Prague")
    assert "the job is paused" in explained["paused"]["warnings"][-1]
    assert len(world.call("explain", "often", "-n", "2", "-o", "json").json["next"]) == 2
    assert world.call("explain", "manual", "-o", "json").error["error_code"] == "no-schedule"
    assert world.call("explain", "none", "-o", "json").error["error_code"] == "job-not-found"
    assert world.call("explain", "kept", "--tz", "UTC", "-o", "json").error["error_code"] == "conflicting-options"


def test_word_that_is_both_is_the_job(world: World) -> None:
    plain = world.call("explain", "daily", "-o", "json").json
    assert plain["expressions"] == ["0 0 * * *"]
    assert "job" not in str(plain["warnings"])
    path = world.jobs("""
jobs:
  - { name: daily, function: f, schedule: "0 9 * * 1", timezone: Europe/Prague }
  - { name: hourly, function: f }
""")
    assert world.call("jobs", "apply", "-f", path).code == 0
    own = world.call("explain", "daily", "-o", "json").json
    assert (own["text"], own["timezone"]) == ("0 9 * * 1", "Europe/Prague")
    assert own["warnings"] == ["explained as the job of this name; with `--tz` it is the schedule"]
    refused = world.call("explain", "hourly", "-o", "json").error
    assert refused["error_code"] == "no-schedule"
    assert "`tocsin explain hourly --tz UTC`" in str(refused)
    for given in (("@daily",), ("daily", "--tz", "UTC")):
        assert world.call("explain", *given, "-o", "json").json["expressions"] == ["0 0 * * *"]
    world.reachable = False
    blind = world.call("explain", "daily", "-o", "json").json
    assert blind["expressions"] == ["0 0 * * *"]
    assert "whether a job has this name is not known" in blind["warnings"][-1]


def test_word_is_a_schedule_without_settings(world: World) -> None:
    (world.folder / "tocsin.yaml").write_text("server: { prot: 1 }")
    blind = world.call("explain", "daily", "-o", "json").json
    assert blind["expressions"] == ["0 0 * * *"]
    assert "whether a job has this name is not known" in blind["warnings"][-1]
    assert "`server.port`" in blind["warnings"][-1]
    assert world.call("explain", "nightly", "-o", "json").error["error_code"] == "invalid-settings"


def test_explain_needs_no_server(world: World) -> None:
    world.reachable = False
    result = world.call("explain", "every weekday at 9am", "--tz", "Europe/Berlin", "-o", "json")
    assert result.json["expressions"] == ["0 9 * * 1-5"]
    assert len(result.json["next"]) == 5
    refused = world.call("explain", "0 25 * * *")
    assert refused.code == 2
    assert "25" in refused.err


def test_schedule_counts_what_fires_in_the_window(world: World) -> None:
    path = world.jobs("""
jobs:
  - { name: often, schedule: "*/5 * * * *", function: f }
  - { name: paused, schedule: "*/5 * * * *", function: f }
  - { name: once, schedule: "0 0 1 1 *", function: f }
""")
    world.call("jobs", "apply", "-f", path)
    world.call("jobs", "pause", "paused")
    result = world.call("schedule", "--hours", "1", "--limit", "2", "-o", "json").json
    often = next(one for one in result["jobs"] if one["job"] == "often")
    assert "paused" not in [one["job"] for one in result["jobs"]]
    assert often["count"] == 12
    assert len(often["fire_times"]) == 2
    assert datetime.now(UTC) < datetime.fromisoformat(often["fire_times"][0])
    assert "and 11 times more until" in world.call("schedule", "--hours", "1").out


def test_stages_run_in_the_order_of_the_flow(world: World) -> None:
    assert world.call("run", "lock-keeper", "registrar").code == 0
    assert world.call("run", "--all").code == 0
    assert world.ran == [("registrar", "lock_keeper"), STAGES]


@pytest.mark.parametrize(
    ("given", "every", "code", "fragment"),
    [
        ([], False, "stage-required", "--all"),
        (["ticker"], True, "stage-required", "--all"),
        (["tickr"], False, "unknown-stage", "Did you mean `ticker`?"),
    ],
)
def test_stages_that_cannot_be_run_are_refused(given: list[str], code: str, fragment: str, *, every: bool) -> None:
    with pytest.raises(UsageError) as caught:
        select_stages(given, STAGES, every=every)
    assert caught.value.code == code
    assert fragment in str(caught.value)


def test_worker_allows_the_secrets_that_are_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[Worker] = []

    async def run_worker(_: object, __: object, worker: Worker) -> None:
        run.append(worker)

    monkeypatch.setattr(World, "run_worker", run_worker)
    (world.folder / "w.py").write_text("from tocsin import Worker\nworker = Worker(secrets=['A'])\n")
    assert world.call("worker", "w.py:worker", "--secret", "B", "--secret", "C").code == 0
    assert [worker.options.secrets for worker in run] == [{"A", "B", "C"}]
    assert world.call("worker", "w.py:worker", "--secret", "file:b", "-o", "json").failure == (2, "invalid-secret-name")


def test_url_in_the_code_of_a_worker_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run_worker(_: object, __: object, ___: Worker) -> None:
        """End at once."""

    monkeypatch.setattr(World, "run_worker", run_worker)
    monkeypatch.setenv("TOCSIN_NATS_URL", "nats://of-the-settings:4222")
    for name, options in (("own", "nats_url='nats://of-the-code:4222'"), ("other", "")):
        (world.folder / f"{name}.py").write_text(f"from tocsin import Worker\nworker = Worker({options})\n")
    assert world.call("worker", "own.py:worker").code == 0
    assert world.call("worker", "other.py:worker").code == 0
    assert world.call("--nats", "nats://of-the-call:4222", "worker", "own.py:worker").code == 0
    assert [settings.nats.url for settings in world.used] == [
        f"nats://of-the-{place}:4222" for place in ("code", "settings", "call")
    ]


def test_settings_in_the_code_of_an_application_count(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option comes before them, and what the environment says is not read."""

    async def run_worker(_: object, __: object, ___: Worker) -> None:
        """End at once."""

    monkeypatch.setattr(World, "run_worker", run_worker)
    monkeypatch.setenv("TOCSIN_NATS_URL", "nats://of-the-settings:4222")
    monkeypatch.setenv("TOCSIN_WORKER__CONCURRENCY", "7")
    (world.folder / "billing.py").write_text(
        "from tocsin import Tocsin\nfrom tocsin.settings import Settings\n"
        "settings = Settings(nats={'url': 'nats://of-the-code:4222', 'user': 'u'}, replicas=3)\n"
        "app = Tocsin('billing', settings=settings)\n"
        "own = Tocsin.in_memory('own')\n"
    )
    for command in ("worker", "apply"):
        assert world.call(command, "billing.py:app").code == 0
        assert world.call("--nats", "nats://of-the-call:4222", command, "billing.py:app").code == 0
    assert [(it.nats.url, it.nats.user, it.replicas, it.worker.concurrency) for it in world.used] == [
        (f"nats://of-the-{place}:4222", "u", 3, None) for place in ("code", "call") * 2
    ]
    assert world.call("worker", "billing.py:app", "--shard", "s1").code == 0
    assert world.used[-1].worker.shards == ("s1",)
    (world.folder / "other.yaml").write_text("replicas: 1\n")
    for command in ("worker", "apply"):
        refused = world.call("--config", "other.yaml", command, "billing.py:app", "-o", "json")
        assert refused.failure == (2, "conflicting-options")
        assert world.call(command, "billing.py:own", "-o", "json").error["error_code"] == "app-not-connected"


def test_worker_opens_the_connection_of_its_code(world: World) -> None:
    (world.folder / "w.py").write_text(
        "import asyncio\nfrom contextlib import asynccontextmanager\nfrom tests.worker.given import Bench\nfrom tocsin import Worker\n"
        "@asynccontextmanager\nasync def connect(options):\n"
        "    print('connected', options.name)\n    asyncio.get_running_loop().call_soon(worker.stop)\n"
        "    yield Bench().connection()\n"
        "worker = Worker(name='mine', connect=connect)\n"
    )
    result = world.call("worker", "w.py:worker")
    assert (result.code, "connected mine" in result.out, world.used) == (0, True, [])
    for options in (
        *(
            (*option, "worker", "w.py:worker")
            for option in (("--nats", "nats://x:1"), ("--root", "r"), ("--data-dir", "d"))
        ),
        ("worker", "w.py:worker", "--shard", "s"),
    ):
        assert world.call(*options, "-o", "json").failure == (2, "conflicting-options")


def test_worker_command_warns_of_missing_handlers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run_worker(_: object, __: object, worker: Worker) -> None:
        serving = asyncio.create_task(worker.serve(Bench().connection()))
        await asyncio.sleep(0)
        worker.stop()
        await serving

    monkeypatch.setattr(World, "run_worker", run_worker)
    (world.folder / "w.py").write_text("from tocsin import Worker\nworker = Worker()\n")
    result = world.call("worker", "w.py:worker")
    assert (result.code, "worker-without-handlers" in result.out + result.err) == (0, True)


@pytest.mark.parametrize(
    ("target", "error_code", "expected"),
    [
        ("nope.py", "worker-not-found", "nope.py"),
        ("no_such_module_at_all", "worker-import-failed", "cannot be imported: ModuleNotFoundError"),
        ("jobs.yaml:worker", "worker-not-found", "jobs.yaml is not a Python file"),
        ("jobs/worker:worker", "worker-not-found", "jobs/worker is not a Python file"),
        ("json:dumps", "not-a-worker", "json:dumps is not a worker but 'function'"),
        ("json:nope", "worker-not-found", "json has no `nope`"),
        (
            "broken.py:worker",
            "worker-import-failed",
            "broken.py cannot be imported: ZeroDivisionError: division by zero",
        ),
    ],
)
def test_invalid_worker_target_is_refused(target: str, error_code: str, expected: str, world: World) -> None:
    (world.folder / "broken.py").write_text("1 / 0")
    (world.folder / "jobs.yaml").write_text("jobs: []")
    result = world.call("worker", target, "-o", "json")
    assert (result.code, result.error["error_code"]) == (2, error_code)
    assert expected in result.error["message"]


@pytest.mark.parametrize("name", ["lock-keeper", "lock_keeper"])
def test_role_of_a_stage_has_hyphens_or_underscores(world: World, name: str) -> None:
    assert list(world.call("permissions", name, "-o", "json").json) == ["lock-keeper"]


def test_role_of_an_absent_stage_is_explained(world: World) -> None:
    result = world.call("permissions", "mq-bridge", "-o", "json")
    assert result.failure == (2, "unknown-role")
    assert "transport" in result.error["message"]
    assert world.call("permissions", "plannner", "-o", "json").failure == (2, "unknown-role")


def test_question_before_a_restore_names_the_history(world: World, tmp_path: Path) -> None:
    for options, is_named in (((), True), (("--no-history",), False)):
        result = world.call("backup", "restore", str(tmp_path), *options, "-o", "json")
        assert result.failure == (2, "confirmation-required")
        assert ("history" in result.error["message"]) is is_named


def test_unreachable_log_and_invalid_settings_have_their_codes(world: World) -> None:
    assert failure_of(LogUnavailable("away")).code == Exit.UNREACHABLE
    assert world.call("jobs", "list", "--nats", "nowhere://a").code == Exit.USAGE


def test_dev_checks_files_before_a_server_starts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def running(*_: object) -> None:
        pytest.fail("a server was started")

    monkeypatch.setattr("tocsin.cli.dev.nats_server.Wanted.running", running)
    result = world.call("dev", "--ephemeral", "--jobs", "missing.yaml", "-o", "json")
    assert result.code == Exit.USAGE
    assert "missing.yaml" in result.error["problems"][0]
