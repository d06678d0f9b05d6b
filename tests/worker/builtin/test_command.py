"""Commands as real processes: arguments, environment, results and output."""

import os
import sys
from pathlib import Path

import pytest

from tests.domain.given import ID, JOB
from tests.worker.builtin.given import PYTHON, CommandBench
from tocsin.domain.events import OutputLine
from tocsin.domain.trace_context import context_in, own_context
from tocsin.worker.builtin.command import program
from tocsin.worker.builtin.lines import Lines
from tocsin.worker.builtin_call import BuiltinFailure
from tocsin.worker.held_tasks import HeldTask

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are observed in /proc")


async def test_argument_from_input_stays_one_argument(commands: CommandBench) -> None:
    program = commands.program("show", 'for each in "$@"; do echo "[$each]"; done')
    hostile = "a b; rm -rf / $(id) `id` 'x' \"y\" * \n second"
    await commands.execute({"argv": [program, "{{ input.day }}", "plain"]}, input={"day": hostile})
    assert "\n".join(await commands.texts()) == f"[{hostile}]\n[plain]"


async def test_value_is_not_read_as_template(commands: CommandBench) -> None:
    program = commands.program("show", 'echo "$1"')
    argv = [program, "{{ input.day }}"]
    assert await commands.execute({"argv": argv, "result": "last_line"}, input={"day": "{{ job }}"}) == "{{ job }}"


async def test_value_cannot_become_an_option(commands: CommandBench) -> None:
    program = commands.program("show", "echo ran")
    failure = await commands.fail({"argv": [program, "{{ input.day }}"]}, input={"day": "--output=/etc/passwd"})
    assert (failure.type, failure.retryable) == ("wrong_input", False)
    assert await commands.texts() == []


@pytest.mark.parametrize("argv", [["--day={{ input.day }}"], ["--", "{{ input.day }}"]])
async def test_author_may_place_value_with_hyphen(argv: list[str], commands: CommandBench) -> None:
    program = commands.program("show", 'for each in "$@"; do last="$each"; done; echo "$last"')
    result = await commands.execute({"argv": [program, *argv], "result": "last_line"}, input={"day": "-5"})
    assert result == argv[-1].replace("{{ input.day }}", "-5")


async def test_undefined_name_fails_without_retry(commands: CommandBench) -> None:
    program = commands.program("show", "echo ran")
    failure = await commands.fail({"argv": [program, "{{ input.day }}"]})
    assert (failure.type, failure.retryable) == ("wrong_input", False)


async def test_input_comes_on_standard_input(commands: CommandBench) -> None:
    program = commands.program("copy", "cat")
    given = {"day": "Müller", "rows": [1, 2]}
    assert await commands.execute({"argv": [program], "result": "json"}, input=given) == given


async def test_input_that_is_not_read_is_no_obstacle(commands: CommandBench) -> None:
    program = commands.program("ignore", "exit 0")
    assert await commands.execute({"argv": [program]}, input={"text": "x" * 60_000}) == {"exit_code": 0}


async def test_command_has_no_variable_of_the_worker(commands: CommandBench) -> None:
    text = "import os, json; print(json.dumps(dict(os.environ)))"
    env = await commands.execute({"argv": [PYTHON, "-I", "-c", text], "result": "json"})
    assert isinstance(env, dict)
    assert {name for name in env if name != "LC_CTYPE"} == {  # Python sets it for itself
        *("PATH", "TOCSIN_JOB", "TOCSIN_STEP", "TOCSIN_EXECUTION_ID"),
        *("TOCSIN_ATTEMPT", "TOCSIN_SCHEDULED_TIME", "TOCSIN_FENCE"),
    }
    assert (env["TOCSIN_JOB"], env["TOCSIN_EXECUTION_ID"]) == (JOB, ID)
    [(claim, _)] = await commands.claims()
    assert (env["TOCSIN_ATTEMPT"], env["TOCSIN_FENCE"]) == ("1", str(claim))


async def test_command_gets_its_trace(commands: CommandBench) -> None:
    commands.traceparent = own_context(ID, is_sampled=True).traceparent
    run = context_in(ID, commands.traceparent, "process", "main", 1, 1)
    assert run is not None
    assert await commands.script("echo $TRACEPARENT") == run.traceparent


async def test_null_character_in_variable_is_final(commands: CommandBench) -> None:
    command = {"argv": [commands.program("work", "exit 0")], "env": {"REPORT_DAY": "{{ input.day }}"}}
    failure = await commands.fail(command, input={"day": "a\0b"})
    assert (failure.type, failure.retryable) == ("wrong_input", False)


async def test_variable_gets_secret_that_is_redacted(commands: CommandBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "hunter-{{ job }}")
    program = commands.program("show", 'echo "$REPORT_LOGIN"')
    command = {"argv": [program], "env": {"REPORT_LOGIN": "{{ input.user }}:${env:DB_PASSWORD}"}, "result": "last_line"}
    assert (
        await commands.execute(command, input={"user": "$${env:DB_PASSWORD}"})
        == "${env:DB_PASSWORD}:${env:DB_PASSWORD}"
    )
    assert await commands.texts() == ["${env:DB_PASSWORD}:${env:DB_PASSWORD}"]


KEY = (
    "-----BEGIN PRIVATE KEY-----\nMIIEvgIBADANBgkqhkiG9w0B\n  AQEFAASCBKgwggSkAgEAAoIB\nAg==\n-----END PRIVATE KEY-----"
)


@pytest.mark.parametrize("secret", [KEY, KEY.replace("\n", "\r\n")], ids=["LF", "CRLF"])
async def test_each_line_of_a_secret_is_redacted(
    secret: str, commands: CommandBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines are kept one by one, and so no line has the whole secret."""
    monkeypatch.setenv("DB_PASSWORD", secret)
    text = 'echo "$REPORT_KEY"; echo "KEY=$REPORT_KEY" >&2; exit 3'
    command = {"script": text, "env": {"REPORT_KEY": "${env:DB_PASSWORD}"}}
    failure = await commands.fail(command)
    for shown in (*await commands.texts(), failure.message):
        assert not any(part in shown for part in ("MIIE", "AQEF", "PRIVATE"))
    assert "KEY=${env:DB_PASSWORD}" in await commands.texts()


async def test_last_line_shows_no_line_of_a_secret(commands: CommandBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", KEY)
    command = {"script": 'echo "$REPORT_KEY"', "env": {"REPORT_KEY": "${env:DB_PASSWORD}"}, "result": "last_line"}
    assert await commands.execute(command) == "${env:DB_PASSWORD}"


async def test_longest_line_of_a_secret_counts(commands: CommandBench, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"line-of-a-key-{number}" for number in range(2_000)]
    monkeypatch.setenv("DB_PASSWORD", "\n".join(lines))
    command = {
        "script": "printf '%s\\n' \"$REPORT_KEY\" | tail -n 20; echo 'a line-of-a-key- and line-of-a-key-1999.'",
        "env": {"REPORT_KEY": "${env:DB_PASSWORD}"},
    }
    await commands.execute(command)
    reference = "${env:DB_PASSWORD}"
    assert await commands.texts() == [*[reference] * 20, f"a line-of-a-key- and {reference}."]


async def test_reference_in_input_value_is_not_resolved(
    commands: CommandBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "hunter22")
    program = commands.program("count", 'printf %s "$REPORT_USER" | wc -c')
    command = {"argv": [program], "env": {"REPORT_USER": "{{ input.user }}"}, "result": "last_line"}
    assert await commands.execute(command, input={"user": "$${env:DB_PASSWORD}"}) == str(len("${env:DB_PASSWORD}"))


@pytest.mark.parametrize("name", ["LD_PRELOAD", "BASH_ENV", "PATH", "AWS_REGION"])
async def test_variable_needs_permission_of_the_worker(name: str, commands: CommandBench) -> None:
    program = commands.program("show", "echo ran")
    failure = await commands.fail({"argv": [program], "env": {name: "x"}})
    assert failure.type == "command_not_allowed"
    assert "builtin.command.variables" in failure.message
    assert await commands.texts() == []


async def test_program_outside_the_rules_does_not_run(commands: CommandBench) -> None:
    failure = await commands.fail({"argv": ["/bin/sh", "-c", "echo ran"]})
    assert failure.type == "command_not_allowed"
    assert await commands.texts() == []


@pytest.mark.parametrize("path", ["link", "../{name}/inner/../../outside/evil", "inner/evil"])
async def test_path_does_not_leave_allowed_folder(path: str, tmp_path: Path) -> None:
    folder, outside = tmp_path / "allowed", tmp_path / "outside"
    for each in (folder, outside, folder / "inner"):
        each.mkdir()
    commands = CommandBench(folder)
    evil = CommandBench(outside).program("evil", "echo ran")
    (folder / "link").symlink_to(evil)
    os.link(evil, folder / "inner" / "evil")
    failure = await commands.fail({"argv": [f"{folder}/{path.format(name='allowed')}"]})
    assert failure.type == "command_not_allowed"


def test_name_of_a_multi_call_binary_counts(tmp_path: Path) -> None:
    (tmp_path / "busybox").write_text("")
    for name in ("df", "sh"):
        (tmp_path / name).symlink_to("busybox")
    allowed = [str(tmp_path / "df")]
    assert program(allowed[0], allowed, "/", "") == str((tmp_path / "busybox").resolve())
    with pytest.raises(BuiltinFailure):
        program(str(tmp_path / "sh"), allowed, "/", "")


async def test_relative_program_is_below_working_folder(commands: CommandBench) -> None:
    commands.program("report.sh", "pwd")
    command = {"argv": ["./report.sh"], "result": "last_line"}
    assert await commands.execute(command) == str(commands.folder)


async def test_bare_name_is_searched_in_the_workers_path(commands: CommandBench) -> None:
    commands.offer(programs=["/usr/bin/*", "/bin/*"])
    assert await commands.execute({"argv": ["printf", "%s", "found"], "result": "last_line"}) == "found"


@pytest.mark.parametrize("cwd", ["/", "relative", "{folder}/link", "{folder}/../other"])
async def test_working_folder_stays_in_allowed_folders(cwd: str, commands: CommandBench) -> None:
    (commands.folder / "link").symlink_to("/etc")
    program = commands.program("show", "pwd")
    failure = await commands.fail({"argv": [program], "cwd": cwd.format(folder=commands.folder)})
    assert failure.type == "command_not_allowed"


async def test_script_needs_an_allowed_interpreter(commands: CommandBench) -> None:
    commands.offer(interpreters=[])
    failure = await commands.fail({"script": "echo ran"})
    assert failure.type == "command_not_allowed"
    assert "builtin.command.interpreters" in failure.message


async def test_script_gets_input_and_leaves_no_file(commands: CommandBench) -> None:
    text = 'import json, sys; print(__file__); print(json.load(sys.stdin)["day"])'
    command = {"script": text, "interpreter": [PYTHON, "-I"], "result": "last_line"}
    assert await commands.execute(command, input={"day": "{{ job }}; x"}) == "{{ job }}; x"
    path = Path((await commands.texts())[0])
    assert not path.parent.exists()


async def test_exit_code_is_the_result_by_default(commands: CommandBench) -> None:
    assert await commands.execute({"script": "echo done"}) == {"exit_code": 0}


async def test_last_line_may_be_json(commands: CommandBench) -> None:
    assert await commands.execute({"script": "echo a; echo '{\"rows\": 3}'; echo", "result": "json"}) == {"rows": 3}


@pytest.mark.parametrize("last", ["no JSON", "NaN", "[" * 5_000])
async def test_last_line_without_json_fails_for_good(last: str, commands: CommandBench) -> None:
    failure = await commands.fail({"script": f"echo '{last}'", "result": "json"})
    assert (failure.type, failure.retryable) == ("invalid_result", False)


async def test_cut_error_shows_no_part_of_a_secret(commands: CommandBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "correct-horse-battery-staple")
    program = commands.program("fail", f"printf '%s%s\\n' {'x' * 290} $REPORT_LOGIN >&2; exit 3")
    failure = await commands.fail({"argv": [program], "env": {"REPORT_LOGIN": "${env:DB_PASSWORD}"}})
    assert failure.message.endswith(f"{'x' * 290}${{env:DB_P")
    assert "correct" not in failure.message


async def test_failure_names_exit_code_and_last_errors(commands: CommandBench) -> None:
    failure = await commands.fail({"script": "for n in $(seq 50); do echo problem $n >&2; done; exit 3"})
    assert (failure.type, failure.retryable, failure.details) == ("exit_code_3", True, {"exit_code": 3})
    assert "problem 50" in failure.message
    assert "problem 5\n" not in failure.message


@pytest.mark.parametrize(("code", "is_retryable"), [(75, True), (2, False)])
async def test_author_names_retryable_exit_codes(code: int, is_retryable: bool, commands: CommandBench) -> None:  # noqa: FBT001
    failure = await commands.fail({"script": f"exit {code}", "retryable_exit_codes": [75]})
    assert (failure.type, failure.retryable) == (f"exit_code_{code}", is_retryable)


async def test_signal_is_named(commands: CommandBench) -> None:
    failure = await commands.fail({"script": "kill -SEGV $$"})
    assert (failure.type, failure.retryable) == ("signal_SIGSEGV", True)


async def test_program_that_cannot_start_is_reported(commands: CommandBench) -> None:
    (commands.folder / "data").write_text("no program")
    failure = await commands.fail({"argv": [f"{commands.folder}/data"]})
    assert failure.type == "command_not_started"


async def test_cpu_limit_ends_a_busy_loop(commands: CommandBench) -> None:
    failure = await commands.fail({"script": "while :; do :; done", "max_cpu": 1})
    assert failure.type == "signal_SIGXCPU"


async def test_memory_limit_of_the_worker_holds(commands: CommandBench) -> None:
    commands.offer(max_memory=300_000_000)
    text = "x = bytearray(500_000_000); print(len(x))"
    failure = await commands.fail({"argv": [PYTHON, "-I", "-c", text], "max_memory": 1_000_000_000})
    assert failure.type == "exit_code_1"
    assert "MemoryError" in failure.message


async def test_size_of_written_files_is_limited(commands: CommandBench) -> None:
    commands.offer(max_file_size=10_000)
    failure = await commands.fail({"script": "exec head -c 1000000 /dev/zero > large"})
    assert failure.type == "signal_SIGXFSZ"
    assert (commands.folder / "large").stat().st_size == 10_000


async def test_limit_of_files_spares_pipes(commands: CommandBench) -> None:
    commands.offer(max_file_size=10_000)
    assert await commands.script("head -c 20000 /dev/zero | wc -c") == "20000"


async def test_lines_have_the_level_of_their_stream(commands: CommandBench) -> None:
    await commands.execute({"script": "echo out; echo err >&2"})
    assert {(line.level, line.text) for line in await commands.lines()} == {("info", "out"), ("warning", "err")}


async def test_flood_keeps_the_last_lines(commands: CommandBench) -> None:
    await commands.execute({"argv": [PYTHON, "-c", "for n in range(300_000): print(n)"], "result": "last_line"})
    assert await commands.texts() == [str(n) for n in range(299_800, 300_000)]


async def test_output_without_line_break_is_cut(commands: CommandBench) -> None:
    text = "import sys; [sys.stdout.write('x' * 1_000_000) for _ in range(20)]"
    failure = await commands.fail({"argv": [PYTHON, "-c", text], "result": "last_line"})
    assert (failure.type, failure.retryable) == ("invalid_result", False)
    [line] = await commands.texts()
    assert len(line) < 1_500


async def test_output_that_is_not_utf8_is_shown(commands: CommandBench) -> None:
    await commands.execute({"script": r"printf 'caf\351 \000 \033[2J\n'"})
    [text] = await commands.texts()
    assert text.startswith("caf\ufffd")
    assert "\x1b" not in text


async def test_lines_are_kept_or_counted(commands: CommandBench) -> None:
    task = await commands.given_task()
    for size in (1, 7, 1_000, 100_000):
        buffer = commands.output.of(task, str, str)
        lines = Lines(buffer, "info")
        text = b"".join(b"%d\n" % number for number in range(5_000)) + b"end"
        for at in range(0, len(text), size):
            lines.feed(text[at : at + size])
        lines.close()
        kept = [message.text for message in buffer.take() if isinstance(message, OutputLine)]
        assert kept == ["4801 lines dropped", *map(str, range(4_801, 5_000)), "end"]
        assert lines.last == b"end"


async def test_input_cannot_replace_the_command(commands: CommandBench) -> None:
    program = commands.program("show", "echo mine")
    given = {"argv": ["/bin/sh"], "builtin": {"argv": ["/bin/sh"]}, "command": ["/bin/sh"], "script": "echo yours"}
    assert await commands.execute({"argv": [program], "result": "last_line"}, input=given) == "mine"


async def test_task_without_specification_fails(commands: CommandBench) -> None:
    await commands.given_task(function="tocsin.command", input={"argv": ["/bin/sh"]})
    await commands.executor.run(HeldTask(await commands.assigned()))
    error = (await commands.report()).error
    assert error is not None
    assert (error.type, error.retryable) == ("wrong_input", False)
