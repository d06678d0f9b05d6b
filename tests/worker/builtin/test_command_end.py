"""The end of commands: timeouts, cancellation, shutdown, kills, and what they leave behind."""

import asyncio
import json
import os
import shutil
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

import pytest
import structlog

from tests.worker.builtin.given import (
    PYTHON,
    CommandBench,
    children_of,
    has_number,
    is_alive,
    number_in,
    parent_of,
    until,
)
from tocsin.settings import SettingsError
from tocsin.worker.builtin import process
from tocsin.worker.held_tasks import HeldTask
from tocsin.worker.outcome import StopReason

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are observed in /proc")

STUBBORN = "trap '' TERM; echo $$ > own; while :; do sleep 0.05; done"
"""Ignores SIGTERM."""
FAMILY = """
(trap '' TERM; sh -c 'echo $$ > grandchild; trap "" TERM; while :; do sleep 0.05; done') &
setsid sh -c 'echo $$ > daemon; trap "" TERM; while :; do sleep 0.05; done' &
echo $$ > own
wait
"""
"""Has a grandchild in its group, and one that left it; both ignore SIGTERM and keep the pipes open."""
_DROP_CAPABILITY = 24
_READS_PROCESSES = (19, 21, 38)
"""CAP_SYS_PTRACE, CAP_SYS_ADMIN and CAP_PERFMON."""


class Started:
    """A command that runs, with its processes."""

    def __init__(self, commands: CommandBench, held: HeldTask) -> None:
        self.held = held
        self.work = asyncio.create_task(commands.executor.run(held))
        self.folder = commands.folder

    async def processes(self, *names: str) -> list[int]:
        """Wait until each has written its number."""
        await until(lambda: all(has_number(self.folder / name) for name in names))
        return [number_in(self.folder / name) for name in names]


async def started(commands: CommandBench, text: str, *, timeout: float = 60, **command: object) -> Started:  # noqa: ASYNC109
    held = await commands.give({"script": text, "grace": 0.3, **command}, timeout=timeout)
    return Started(commands, held)


async def test_stubborn_command_is_killed_after_timeout_and_grace(commands: CommandBench) -> None:
    run = await started(commands, STUBBORN, timeout=1)
    [own] = await run.processes("own")
    await run.work
    assert not is_alive(own)
    error = (await commands.report()).error
    assert error is not None
    assert error.type == "timed_out"


async def test_command_may_clean_up_within_its_grace(commands: CommandBench) -> None:
    text = "trap 'echo cleaned > after; exit 0' TERM; echo $$ > own; while :; do sleep 0.05; done"
    run = await started(commands, text, grace=20)
    await run.processes("own")
    run.held.stop(StopReason.CANCELLED)
    await run.work
    assert (commands.folder / "after").read_text() == "cleaned\n"
    assert await commands.reports() == []


CLEANER = """
import signal, sys, time
def end(*_):
    time.sleep(0.5)
    print("cleaned", file=open("after", "w"))
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("1", file=open("own", "w"))
while True:
    time.sleep(0.05)
"""
"""Cleans up after SIGTERM, which takes a while."""


@pytest.mark.parametrize("text", ["{0} cleaner.py; echo end", "{0} cleaner.py & exec sleep 60"], ids=["waits", "exec"])
async def test_program_of_a_script_may_clean_up(text: str, commands: CommandBench) -> None:
    """The shell itself ends at once."""
    (commands.folder / "cleaner.py").write_text(CLEANER)
    run = await started(commands, text.format(PYTHON), grace=20)
    await run.processes("own")
    run.held.stop(StopReason.CANCELLED)
    await run.work
    assert (commands.folder / "after").read_text() == "cleaned\n"


async def test_stop_before_the_start_is_sigterm(tmp_path: Path) -> None:
    """The grace is long, so a signal that is lost shows as SIGKILL."""
    order = process.Order("/bin/sleep", ("sleep", "30"), None, str(tmp_path), {}, 5.0, None, None, None, None)
    with TemporaryFile() as config:
        config.write(json.dumps(asdict(order)).encode())
        config.seek(0)
        (control, stop), (status, said) = os.pipe(), os.pipe()
        os.write(stop, b"t")
        passed = (config.fileno(), control, said)
        supervisor = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", process._SUPERVISOR, *map(str, passed), pass_fds=passed
        )
        await supervisor.wait()
        answer = json.loads(os.read(status, 1_000))
    for fd in (control, stop, status, said):
        os.close(fd)
    assert answer == {"signal": signal.SIGTERM, "remaining": []}


async def test_command_inherits_no_blocked_signals(commands: CommandBench) -> None:
    assert await commands.script("grep SigBlk /proc/self/status") == "SigBlk:\t0000000000000000"


def change_supervisor(commands: CommandBench, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the supervisor run some lines first."""
    changed = commands.folder / "supervisor.py"
    changed.write_text(text + Path(process._SUPERVISOR).read_text())
    monkeypatch.setattr(process, "_SUPERVISOR", str(changed))


async def test_script_needs_no_folder_of_the_system(commands: CommandBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container with a root that cannot be written, only the working folder can."""
    change_supervisor(commands, "import tempfile\ntempfile._candidate_tempdir_list = lambda: ['/none']\n", monkeypatch)
    assert await commands.script("dirname $(dirname $0)") == str(commands.folder)
    assert list(commands.folder.glob("tocsin-*")) == []


NO_SPACE = """
import errno, os
real_open = open
def open(path, *arguments, **options):
    if str(path).endswith("/script"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return real_open(path, *arguments, **options)
"""
NO_PROCESS = """
import errno, os
def fork():
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
os.fork = fork
"""


@pytest.mark.parametrize(
    ("text", "said"), [(NO_SPACE, "No space left on device"), (NO_PROCESS, "Resource temporarily unavailable")]
)
async def test_command_without_room_says_so(
    text: str, said: str, commands: CommandBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_supervisor(commands, text, monkeypatch)
    failure = await commands.fail({"script": "exit 0"})
    assert (failure.type, failure.retryable) == ("command_not_started", True)
    assert said in failure.message


async def test_sigterm_arrives_once(commands: CommandBench) -> None:
    text = "trap 'echo signal; sleep 0.2' TERM; echo $$ > own; while :; do sleep 0.05; done"
    run = await started(commands, text, grace=1)
    await run.processes("own")
    run.held.stop(StopReason.CANCELLED)
    await run.work
    assert (await commands.texts()).count("signal") == 1


@pytest.mark.parametrize("reason", [StopReason.CANCELLED, StopReason.SHUTDOWN])
async def test_stopped_command_leaves_no_process(reason: StopReason, commands: CommandBench) -> None:
    run = await started(commands, FAMILY)
    processes = await run.processes("own", "grandchild", "daemon")
    run.held.stop(reason)
    await run.work
    assert [process for process in processes if is_alive(process)] == []
    assert len(commands.handed_back) == (reason is StopReason.SHUTDOWN)


async def test_second_stop_kills_at_once(commands: CommandBench) -> None:
    run = await started(commands, STUBBORN, grace=30)
    [own] = await run.processes("own")
    run.held.stop(StopReason.SHUTDOWN)
    await asyncio.sleep(0)
    run.work.cancel()
    await asyncio.wait([run.work])
    assert not is_alive(own)


async def test_ended_command_leaves_no_process(commands: CommandBench) -> None:
    text = FAMILY.replace("wait\n", "while [ ! -e grandchild ] || [ ! -e daemon ]; do sleep 0.05; done; echo end\n")
    run = await started(commands, text, result="last_line")
    processes = await run.processes("own", "grandchild", "daemon")
    await run.work
    assert (await commands.report()).result == "end"
    assert [process for process in processes if is_alive(process)] == []


async def test_no_zombie_is_left(commands: CommandBench) -> None:
    before = set(children_of(os.getpid()))  # earlier tests of this process may have started servers
    run = await started(commands, "sleep 0 & sleep 0 & exit 0")
    await run.work
    await until(lambda: set(children_of(os.getpid())) <= before)


async def test_killed_supervisor_ends_its_command(commands: CommandBench) -> None:
    run = await started(commands, STUBBORN)
    [own] = await run.processes("own")
    os.kill(parent_of(own), signal.SIGKILL)
    await run.work
    await until(lambda: not is_alive(own))
    error = (await commands.report()).error
    assert error is not None
    assert (error.type, error.retryable) == ("supervisor_killed", True)


@pytest.mark.parametrize(
    "text",
    [
        "kill -STOP $PPID; echo $$ > own; while :; do sleep 0.05; done",
        "echo $$ > own; trap '' TERM; while :; do kill -STOP $PPID; done",
        "kill -STOP $PPID; echo $$ > own",
    ],
    ids=["once", "always", "before its end"],
)
async def test_stopped_supervisor_frees_its_worker(
    text: str, commands: CommandBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "ANSWER_S", 2.0)
    run = await started(commands, text, timeout=1)
    [own] = await run.processes("own")
    await run.work
    await until(lambda: not is_alive(own))
    error = (await commands.report()).error
    assert error is not None
    assert error.type == "timed_out"


async def test_supervisor_that_is_stopped_again_leaves_no_process(commands: CommandBench) -> None:
    text = """
setsid sh -c 'echo $$ > daemon; trap "" TERM; while :; do sleep 0.05; done' &
trap 'kill -STOP $PPID' TERM
echo $$ > own
while :; do sleep 0.05; done
"""
    run = await started(commands, text)
    processes = await run.processes("own", "daemon")
    run.held.stop(StopReason.CANCELLED)
    await run.work
    assert [number for number in processes if is_alive(number)] == []


async def test_stopped_supervisor_is_killed_by_second_stop(commands: CommandBench) -> None:
    run = await started(commands, "echo $$ > own; while :; do kill -STOP $PPID; done", grace=30)
    [own] = await run.processes("own")
    run.held.stop(StopReason.SHUTDOWN)
    await asyncio.sleep(0)
    run.work.cancel()
    await asyncio.wait([run.work])
    await until(lambda: not is_alive(own))


async def test_killed_supervisor_is_logged(commands: CommandBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "ANSWER_S", -30.0)
    run = await started(commands, STUBBORN, grace=30)
    [own] = await run.processes("own")
    with structlog.testing.capture_logs() as lines:
        run.held.stop(StopReason.CANCELLED)
        await run.work
    await until(lambda: not is_alive(own))
    assert [line["action"] for line in lines if line["log_level"] == "warning"] == ["command-remains"]


@pytest.mark.parametrize(
    "answer",
    [
        '{"exit": 0}{"exit": 3}',
        "junk",
        '{"exit": "0"}',
        "[1]",
        "{}",
        '{"remaining": []}',
        '{"exit": 99999}',
        '{"problem": "\\xff"}',
        '{"x": ' + "[" * 60_000,
        '"' + "x" * process.MAX_ANSWER + '"',
        "\\xff",
    ],
)
async def test_forged_answer_is_a_failure(
    answer: str, commands: CommandBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of a worker of root may write into the pipe of its supervisor."""
    forger = tmp_path / "forger.py"
    forger.write_text(f"import os, sys\nos.write(int(sys.argv[3]), b'{answer}')\n")
    monkeypatch.setattr(process, "_SUPERVISOR", str(forger))
    tasks = asyncio.all_tasks()
    error = await commands.fail({"script": "exit 0"})
    assert error.type == "supervisor_killed"
    assert asyncio.all_tasks() == tasks


async def test_killed_worker_leaves_no_process(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
from pathlib import Path
from tests.worker.builtin.given import CommandBench
from tests.worker.builtin.test_command_end import FAMILY, started

async def main():
    run = await started(CommandBench(Path({str(tmp_path)!r})), FAMILY)
    await run.work

asyncio.run(main())
"""
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    names = ("own", "grandchild", "daemon")
    await until(lambda: all(has_number(tmp_path / name) for name in names))
    processes = [number_in(tmp_path / name) for name in names]
    worker.send_signal(signal.SIGKILL)
    await worker.wait()
    await until(lambda: not any(is_alive(process) for process in processes))


async def test_command_cannot_read_the_workers_environment(tmp_path: Path) -> None:
    program = f"""
import asyncio, ctypes
from pathlib import Path
from tests.worker.builtin.given import CommandBench
from tocsin.worker.builtin.process import hide_memory

async def main():
    hide_memory()
    for capability in {_READS_PROCESSES}:  # of root
        ctypes.CDLL(None).prctl({_DROP_CAPABILITY}, capability, 0, 0, 0)
    commands = CommandBench(Path({str(tmp_path)!r}))
    text = "cat /proc/$PPID/environ; supervisor=$(cut -d' ' -f4 /proc/$PPID/stat); cat /proc/$supervisor/environ; exit 0"
    await commands.execute({{"script": text}})
    print(await commands.texts())

asyncio.run(main())
"""
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), env={**os.environ, "CANARY": "leaked"}, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await worker.communicate()
    assert b"Permission denied" in said
    assert b"leaked" not in said


async def test_command_opens_no_pipe_of_its_supervisor(tmp_path: Path) -> None:
    program = f"""
import asyncio, ctypes
from pathlib import Path
from tests.worker.builtin.given import CommandBench

async def main():
    for capability in {_READS_PROCESSES}:  # of root
        ctypes.CDLL(None).prctl({_DROP_CAPABILITY}, capability, 0, 0, 0)
    commands = CommandBench(Path({str(tmp_path)!r}))
    await commands.execute({{"script": "cat /proc/$PPID/fd/0; exit 0"}})
    print(await commands.texts())

asyncio.run(main())
"""
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    said, _ = await worker.communicate()
    assert b"Permission denied" in said


async def test_program_gains_no_rights(commands: CommandBench) -> None:
    """A process with other rights could not be ended."""
    assert await commands.script("grep NoNewPrivs /proc/self/status") == "NoNewPrivs:\t1"


_AS_ANOTHER_USER: Final = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-kill")
_RIGHTS: Final = "+setuid,+dac_override"
"""The right to change users, and to read this Python wherever it is installed."""
_WRITE: Final = "import os, time\ndef write(): open('own', 'w').write(f'{os.getpid()}\\n')\n"
UNENDING: Final = {
    "the command": f"{_WRITE}os.setuid(0); write(); time.sleep(99)",
    "its daemon": f"{_WRITE}if os.fork() == 0: os.setuid(0); os.setsid(); write()\ntime.sleep(99)",
}
"""Programs with a process that SIGKILL of the worker does not end, as if it waited for a disk that does not answer."""


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="only root may start such a worker")
@pytest.mark.parametrize("name", UNENDING)
async def test_command_that_cannot_be_ended_frees_its_worker(name: str, tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
from pathlib import Path
from tests.worker.builtin.given import CommandBench, PYTHON
from tests.worker.builtin.test_command_end import UNENDING, StopReason, started

async def main(folder):
    run = await started(CommandBench(folder), UNENDING[{name!r}], interpreter=[PYTHON], grace=0.1)
    await run.processes("own")
    run.held.stop(StopReason.CANCELLED)
    await run.work
    print("freed")

asyncio.run(main(Path(sys.argv[1])))
"""
    worker = await asyncio.create_subprocess_exec(
        *(*_AS_ANOTHER_USER, "--inh-caps", _RIGHTS, "--ambient-caps", _RIGHTS),
        *(sys.executable, "-c", program, str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await worker.communicate()
    own = number_in(tmp_path / "own")
    assert is_alive(own)
    os.kill(own, signal.SIGKILL)
    assert b"freed" in said
    assert f"[{own}]".encode() in said


@pytest.mark.skipif(os.getuid() != 0, reason="a limit holds for other users")
def test_limit_that_root_does_not_have_is_refused(commands: CommandBench) -> None:
    with pytest.raises(SettingsError) as refused:
        commands.offer(max_processes=200)
    [problem] = refused.value.problems
    assert (problem.field, problem.code) == ("builtin.command.max_processes", "limit-without-effect")


FORKS: Final = """
import os, time
for number in range(100):
    try:
        child = os.fork()
    except BlockingIOError:
        print(number)
        break
    if child == 0:
        time.sleep(60)
"""
COPIES: Final = """
import contextlib, os, time
print("begun", flush=True)
end = time.monotonic() + 30  # should its supervisor fail
while time.monotonic() < end:
    with contextlib.suppress(OSError):
        os.setsid()
    with contextlib.suppress(OSError):
        os.fork()
"""
"""Starts copies of itself as fast as it can, each in a group of its own."""


async def as_plain_user(program: str, folder: Path) -> str:
    """Run a program with a folder as a user whose processes can be limited; return its output."""
    user = (*_AS_ANOTHER_USER, "--inh-caps", "+dac_override", "--ambient-caps", "+dac_override")
    worker = await asyncio.create_subprocess_exec(
        *(user if os.getuid() == 0 else ()),
        *(sys.executable, "-c", f"import asyncio, sys\nfrom pathlib import Path\n{program}"),
        str(folder),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await worker.communicate()
    return said.decode()


limited = pytest.mark.skipif(os.getuid() == 0 and not shutil.which("setpriv"), reason="root has no such limit")


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o777)
    return tmp_path


@limited
async def test_number_of_processes_is_limited(open_folder: Path) -> None:
    program = """
from tests.worker.builtin.given import CommandBench, PYTHON
from tests.worker.builtin.test_command_end import FORKS

async def main(folder):
    commands = CommandBench(folder)
    commands.offer(max_processes=50)
    print(await commands.script(FORKS, interpreter=[PYTHON]))
    print(await CommandBench(folder).script(FORKS + "else: print('unlimited')", interpreter=[PYTHON]))

asyncio.run(main(Path(sys.argv[1])))
"""
    bounded, unlimited = (await as_plain_user(program, open_folder)).split()
    assert int(bounded) < 50
    assert unlimited == "unlimited"


@limited
async def test_program_that_copies_itself_is_ended(open_folder: Path) -> None:
    program = """
from tests.worker.builtin.given import CommandBench, PYTHON
from tests.worker.builtin.test_command_end import COPIES

async def main(folder):
    commands = CommandBench(folder)
    commands.offer(max_processes=100)
    failure = await commands.fail({"script": COPIES, "interpreter": [PYTHON], "grace": 0.1}, timeout=3)
    print(failure.type, await commands.texts())

asyncio.run(main(Path(sys.argv[1])))
"""
    said = await as_plain_user(program, open_folder)
    assert "timed_out ['begun']" in said
    assert "command-remains" not in said
