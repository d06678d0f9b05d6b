"""Counts the files and functions of `tocsin` that are called in one firing of the simplest job.

The second firing counts, from before its due time until its execution has been completed for a second: the first imports.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import CodeType, FrameType

from tests.house.measure import ROOT
from tocsin.cli import main

JOB = {"jobs": [{"name": "simplest", "schedule": "@every 10s", "function": "work"}]}
PAUSE_S = 8
"""Seconds from an execution until shortly before the next."""
WORKER = (
    'from tocsin import Worker\n\nworker = Worker()\n\n\n@worker.task("work")\ndef work(context: object) -> None: ...\n'
)


def files_of_one_firing() -> dict[str, int]:
    """Run `tocsin dev` with one job, and return how many files and functions its second firing runs through."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "jobs.yaml").write_text(json.dumps(JOB), "utf-8")
        (Path(folder) / "work.py").write_text(WORKER, "utf-8")
        command = [sys.executable, "-m", "tests.house.firing", "dev", "--ephemeral", "--port", "0", "-o", "json"]
        command += ["--jobs", "jobs.yaml", "--worker", "work.py:worker"]
        settings = {"TOCSIN_SERVER__PORT": "0", "TOCSIN_METRICS__ENABLED": "false", "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(
            command, cwd=folder, env=os.environ | settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            completed = (line for line in process.stdout if json.loads(line).get("fact", {}).get("type") == "completed")
            next(completed)
            time.sleep(PAUSE_S)
            process.stdin.write("begin\n")
            process.stdin.flush()
            next(completed)
            time.sleep(1)
            process.stdin.close()
            process.wait()
        functions = json.loads((Path(folder) / "functions.json").read_text("utf-8"))
    return {"one firing: files": len({file for file, _ in functions}), "one firing: functions": len(functions)}


class _Calls:
    """The functions that were called since `begin`."""

    def __init__(self) -> None:
        self.code: set[CodeType] | None = None

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and self.code is not None:
            self.code.add(frame.f_code)

    def follow_input(self) -> None:
        sys.stdin.readline()
        self.code = set()
        sys.stdin.read()
        package = str(ROOT / "src")
        called = {(code.co_filename, code.co_qualname) for code in self.code if code.co_filename.startswith(package)}
        functions = [call for call in sorted(called) if call[1] != "<module>"]
        Path("functions.json").write_text(json.dumps(functions), "utf-8")
        os._exit(0)


if __name__ == "__main__":
    calls = _Calls()
    threading.Thread(target=calls.follow_input, daemon=True).start()
    threading.setprofile(calls.note)
    sys.setprofile(calls.note)
    main()
