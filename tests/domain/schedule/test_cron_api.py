"""The public module `tocsin.cron`."""

import doctest
import subprocess
import sys

from tocsin import cron


def test_examples_of_the_public_module_run() -> None:
    failed, attempted = doctest.testmod(cron)
    assert (failed, attempted > 0) == (0, True)


def test_domain_imports_no_parser_library() -> None:
    code = (
        "import sys, tocsin.cron, tocsin.domain.formats, tocsin.domain.execution_plan\n"
        "print(sorted({'croniter', 'lark', 'jsonschema'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
