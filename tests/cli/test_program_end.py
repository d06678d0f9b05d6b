"""The end of the program beside threads of a library."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
{loaded}
from tocsin import cli

class Late:
    def __del__(self, write=os.write):
        write(1, b"the interpreter ended")

sys.late = Late()
sys.argv = ["tocsin", *{arguments}]
cli.main()
"""


@pytest.mark.parametrize(("arguments", "code", "said"), [(["--version"], 0, "tocsin 0"), (["none"], 2, "'none'")])
@pytest.mark.parametrize("loaded", ["import obstore", ""])
def test_interpreter_ends_without_threads_of_obstore(loaded: str, arguments: list[str], code: int, said: str) -> None:
    """At the interpreter's end, one of its threads may abort the process, whose exit code is lost then."""
    program = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(loaded=loaded, arguments=arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert program.returncode == code, program.stderr
    assert said in program.stdout + program.stderr
    assert ("the interpreter ended" in program.stdout) is not bool(loaded)
