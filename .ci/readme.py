"""Run one of README's two commands in a clone, exactly as a reader types it.

    python .ci/readme.py 1 CLONE    the server: wait until jobs completed, press Ctrl-C, check the output
    python .ci/readme.py 2 CLONE    all tests: the exit code is that of the command

The environment holds python3.11, the programs of the system, and the proxy and index settings of pip; nothing else.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

STARTED_WITHIN_S: Final = 300
ENDS_WITHIN_S: Final = 60
COMPLETED: Final = 5
PASSED_ON: Final = re.compile(r"(?i)(PIP_.*|UV_.*|.*_proxy|SSL_CERT_.*|REQUESTS_CA_BUNDLE|LANG|TZ)")


def command(clone: Path, number: int) -> str:
    """Return the text of a code block under "Two commands"."""
    section = (clone / "README.md").read_text(encoding="utf-8").split("\n## Two commands\n", 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    if len(blocks) != 2:  # noqa: PLR2004 - its heading says so
        sys.exit(f'README.md has {len(blocks)} commands under "Two commands"; expected two code blocks marked sh.')
    return str(blocks[number - 1])


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a reader, with a python3.11 that this interpreter stands for."""
    programs = home / "bin"
    programs.mkdir()
    (programs / "python3.11").symlink_to(sys.executable)
    passed_on = {name: value for name, value in os.environ.items() if PASSED_ON.fullmatch(name)}
    return {**passed_on, "HOME": str(home), "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin"}


def run_server(text: str, clone: Path, variables: dict[str, str], output: Path) -> int:
    """Start the server, press Ctrl-C after some executions completed, and check what it printed."""
    with output.open("wb") as sink:
        process = subprocess.Popen(  # noqa: S603 - README's own command
            ["/bin/bash", "-c", text],
            cwd=clone,
            env=variables,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + STARTED_WITHIN_S
    while process.poll() is None and time.monotonic() < deadline and completed(output) < COMPLETED:
        time.sleep(0.5)
    ran = process.poll() is None and completed(output) >= COMPLETED
    signal_group(process.pid, signal.SIGINT)
    try:
        code: int | None = process.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        code = None
    signal_group(process.pid, signal.SIGKILL)
    print(output.read_text(encoding="utf-8", errors="replace"))
    print(f"{completed(output)} executions completed; after Ctrl-C the exit code was {code}")
    return 0 if ran and code == 0 else 1


def completed(output: Path) -> int:
    """Count the executions that the live view reported as completed."""
    return len(re.findall(r"\bcompleted\b", output.read_text(encoding="utf-8", errors="replace")))


def signal_group(group: int, number: signal.Signals) -> None:
    """Signal a process group, as a terminal does; an ended group is ignored."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def main(number: int, clone: Path) -> int:
    """Run the command and return an exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a background job ignores, its programs ignore too
    text = command(clone, number)
    print(text, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        variables = environment(home)
        if number == 1:
            return run_server(text, clone, variables, home / "output")
        return subprocess.run(["/bin/bash", "-c", text], cwd=clone, env=variables, check=False).returncode  # noqa: S603


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
