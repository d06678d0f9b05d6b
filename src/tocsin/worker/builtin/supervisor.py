"""The parent of one command, which leaves no process of it behind.

    python -I -S supervisor.py CONFIG CONTROL STATUS

The numbers are open file descriptors. CONFIG has the order as JSON. The worker writes `t` into CONTROL to have the command
ended by SIGTERM, and after the grace by SIGKILL, and `k` for SIGKILL at once; the end of CONTROL means `t`, so that nothing
outlives a worker that was killed. STATUS receives one JSON object. Standard input, output and error are those of the command.

This is a process of its own for three reasons. Its single thread may change itself between `fork` and `exec`, which
Python's threads forbid the worker. It outlives the worker. And on Linux it is the subreaper of the command: a process that
left the command's group becomes its child, so it can end that too.
"""

import contextlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, Final, NoReturn

_SET_DEATH_SIGNAL: Final = 1
_SET_DUMPABLE: Final = 4
_SET_SUBREAPER: Final = 36
_SET_NO_NEW_PRIVILEGES: Final = 38
_TERMINATE: Final = b"t"
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NOT_STARTED: Final = 127
_MAX_REMAINING: Final = 1_000
"""Processes that an answer names, so that the worker accepts its size."""
_LOOK_S: Final = 0.005
_GROUP_LOOK_S: Final = (0.05, 0.5)
"""The first and the longest pause between two looks at a group: each reads all of /proc, and doubles the pause."""
_GROUP: Final = 2
"""The place of the group in a process's fields."""
_KILLS_S: Final = 10.0
"""How long the supervisor repeats SIGKILL. A process may wait for a disk that does not answer, or have the rights of another user."""


def main(config_fd: int, control_fd: int, status_fd: int) -> None:
    """Run the command that the configuration names."""
    _process_control(_SET_DUMPABLE, 0)  # or its command, and others of this user, could open its descriptors in /proc
    for fd in (config_fd, control_fd, status_fd):
        os.set_inheritable(fd, False)  # noqa: FBT003 - positional only
    with open(config_fd, "rb") as file:
        order = json.load(file)
    _process_control(_SET_SUBREAPER, 1)
    wakeup_fd = _watch_signals()
    folder: str | None = None
    try:
        try:
            arguments = list(order["argv"])
            if order["script"] is not None:
                folder = _new_folder(order["cwd"])
                arguments.append(_written(folder, order["script"]))
            child, problem_fd = _start(order, arguments)
        except OSError as error:  # no room for the script, or for another process
            _write(status_fd, {"problem": error.strerror or str(error)})
            return
        _write(status_fd, _follow(child, problem_fd, control_fd, wakeup_fd, order["grace"]))
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _new_folder(working_folder: str) -> str:
    """Return a new folder for a script, in the working folder if no other works."""
    try:
        return tempfile.mkdtemp(prefix="tocsin-")
    except OSError:
        return tempfile.mkdtemp(prefix="tocsin-", dir=working_folder)


def _written(folder: str, script: str) -> str:
    path = os.path.join(folder, "script")
    with open(path, "w", encoding="utf-8") as file:
        file.write(script)
    return path


def _start(order: dict[str, Any], arguments: list[str]) -> tuple[int, int]:
    """Start the command; return its process, and the pipe that says why it cannot start."""
    problem_fd, child_problem_fd = os.pipe()
    supervisor = os.getpid()
    # A signal to the child waits until this program's handlers are gone.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        child = os.fork()
        if child == 0:
            _become(order, arguments, supervisor, child_problem_fd)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    os.close(child_problem_fd)
    return child, problem_fd


def _follow(child: int, problem_fd: int, control_fd: int, wakeup_fd: int, grace: float) -> dict[str, Any]:
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):  # the worker must see the end of the output when the command's processes have ended
        os.dup2(nothing, fd)
    is_ended = _wait(child, control_fd, wakeup_fd, grace)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # before the number is free: the group of the command, and no other
    if not is_ended:
        return {"remaining": [child]}
    with open(problem_fd, "rb") as file:  # after the end, because a program on a disk that does not answer never starts
        problem = file.read()
    _, status = os.waitpid(child, 0)
    remaining = _end_descendants()[:_MAX_REMAINING]
    if problem:
        return {"problem": problem.decode(errors="replace")}
    code = os.waitstatus_to_exitcode(status)
    return {"exit" if code >= 0 else "signal": abs(code), "remaining": remaining}


def _become(order: dict[str, Any], arguments: list[str], supervisor: int, problem_fd: int) -> NoReturn:
    """Turn into the command; this is the process between `fork` and `exec`."""
    try:
        os.setsid()
        _process_control(_SET_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(_NOT_STARTED)
        signal.set_wakeup_fd(-1)
        for number in (*_SIGNALS, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores the last two
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        _process_control(_SET_NO_NEW_PRIVILEGES, 1)  # a program with other rights could not be ended
        os.chdir(order["cwd"])
        _limit(resource.RLIMIT_CORE, 0)
        if order["max_cpu"] is not None:
            _limit(resource.RLIMIT_CPU, order["max_cpu"], spare=1)  # SIGXCPU, and a second later SIGKILL
        if order["max_memory"] is not None:
            _limit(resource.RLIMIT_AS, order["max_memory"])
        if order["max_file_size"] is not None:
            _limit(resource.RLIMIT_FSIZE, order["max_file_size"])
        if order["max_processes"] is not None:
            _limit(resource.RLIMIT_NPROC, order["max_processes"])
        os.execve(order["executable"], arguments, order["env"])  # noqa: S606 - no shell is meant
    except (OSError, ValueError) as error:
        text = getattr(error, "strerror", None) or str(error)
        os.write(problem_fd, text.encode(errors="replace")[:1_000])
    finally:
        os._exit(_NOT_STARTED)


def _limit(kind: int, value: int, *, spare: int = 0) -> None:
    _, hard = resource.getrlimit(kind)
    values = (value, value + spare)
    if hard != resource.RLIM_INFINITY:
        values = (min(value, hard), min(value + spare, hard))
    resource.setrlimit(kind, values)


def _wait(child: int, control_fd: int, wakeup_fd: int, grace: float) -> bool:
    """Wait for the end of the command; return whether it ended.

    End it if the worker says so. Then all processes of its group have the grace: a shell ends at once, and the program that it
    runs may clean up.
    """
    watched, deadline, last = [control_fd, wakeup_fd], float("inf"), float("inf")
    pause, longest = _GROUP_LOOK_S
    while not (has_ended := _has_ended(child)) or (time.monotonic() < deadline < float("inf") and _is_alive(child)):
        left = None if deadline == float("inf") else max(0.0, deadline - time.monotonic())
        if has_ended and left is not None:
            left = min(left, pause)  # the end of a process whose parent lives is no signal
            pause = min(2 * pause, longest)
        ready, _, _ = select.select(watched, [], [], left)
        is_ended = False
        if wakeup_fd in ready:
            is_ended = any(number in _SIGNALS for number in os.read(wakeup_fd, 512))
        if control_fd in ready:
            word = os.read(control_fd, 1)
            if not word:
                watched.remove(control_fd)
            if word in {b"", _TERMINATE}:
                is_ended = True
            else:
                deadline = 0.0
        if is_ended and deadline == float("inf"):
            _signal_group(child, signal.SIGTERM)
            deadline = time.monotonic() + grace
        if (now := time.monotonic()) >= deadline:
            last = min(last, now + _KILLS_S)
            if now >= last:
                return False
            _signal_group(child, signal.SIGKILL)
            deadline = now + 1.0  # again, if it cannot end yet
    return True


def _has_ended(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _is_alive(group: int) -> bool:
    """Return whether a process of a group runs; False where there is no /proc."""
    return any(fields[_GROUP] == str(group).encode() and fields[0] not in {b"Z", b"X"} for _, fields in _processes())


def _signal_group(child: int, number: signal.Signals) -> None:
    try:
        os.killpg(child, number)
    except (ProcessLookupError, PermissionError):  # it has no group of its own yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(child, number)


def _end_descendants() -> list[int]:
    """Kill what the command left behind; return the processes that did not end.

    Each is stopped before any is killed: a stopped process starts no others, so programs that start copies of themselves end too.
    """
    last, stopped = time.monotonic() + _KILLS_S, set[int]()
    while True:
        descendants = _descendants()
        has_new = not stopped.issuperset(descendants)
        for process in descendants:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGSTOP if has_new else signal.SIGKILL)
        stopped.update(descendants)
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return []
        if time.monotonic() >= last:
            for process in descendants:  # none stays stopped
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL)
            return descendants
        if not has_new:
            time.sleep(_LOOK_S)


def _descendants() -> list[int]:
    """Return the processes that descend from this process; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for process, fields in _processes():
        children.setdefault(int(fields[1]), []).append(process)
    found = list(children.get(os.getpid(), ()))
    for process in found:  # it grows
        found += children.get(process, ())
    return found


def _processes() -> Iterator[tuple[int, list[bytes]]]:
    """Yield each process with its state, its parent, its group and more, if /proc exists."""
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdecimal():
                with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                    # <pid> (<name, which may contain anything>) <state> <parent> <group> …
                    fields = file.read().rpartition(b")")[2].split()
                    if len(fields) > _GROUP:
                        yield int(name), fields


def _process_control(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - only Linux has the call

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _watch_signals() -> int:
    """Return a descriptor that can be read after each signal."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    for number in (*_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return read_fd


def _write(status_fd: int, status: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the worker is gone
        os.write(status_fd, json.dumps(status).encode())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
