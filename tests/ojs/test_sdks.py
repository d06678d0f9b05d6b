"""The examples with the official SDKs, unmodified, against a real server.

No package index has the SDKs: PyPI's `ojs` is another project, and npm has no `@openjobspec/sdk`. So the tests take clones, and without them they are
skipped.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.ojs.served import Server

EXAMPLES: Final = Path(__file__).parents[2] / "examples" / "ojs"
PATIENCE_S: Final = 120
PYTHON_SDK: Final = "OJS_PYTHON_SDK"
"""The variable with the folder `src` of a clone of openjobspec/ojs-python-sdk."""
JS_SDK: Final = "OJS_JS_SDK"
"""The variable with `dist/esm/index.js` in a clone of openjobspec/ojs-js-sdk, after its build."""


def output_of(command: list[str], gateway: Server, **environment: str) -> dict[str, object]:
    """Run an example, and return the JSON that it prints."""
    ended = subprocess.run(
        command,
        env={**os.environ, "OJS_URL": gateway.url, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    shown: dict[str, object] = json.loads(ended.stdout.splitlines()[-1])
    return shown


def expected(name: str) -> dict[str, object]:
    """Return the output of an example.

    A batch completes after its callbacks, also if a job failed. The middleware of the client added the team, and that of the worker saw it.
    """
    return {
        "job": "completed",
        "result": {"to": "ada@example.com"},
        "second": "duplicate",
        "workflows": ["completed", "completed"],
        "alerts": ["a mail failed"],
        "teams": ["mail"],
        "cron": name,
    }


def test_official_python_sdk(gateway: Server) -> None:
    sdk = os.environ.get(PYTHON_SDK)
    if sdk is None:
        pytest.skip(f"clone https://github.com/openjobspec/ojs-python-sdk, and set {PYTHON_SDK} to its folder `src`")
    command = [sys.executable, str(EXAMPLES / "python_sdk.py")]
    assert output_of(command, gateway, PYTHONPATH=sdk) == expected("python-sdk")


def test_official_javascript_sdk(gateway: Server) -> None:
    sdk, node = os.environ.get(JS_SDK), shutil.which("node")
    if sdk is None or node is None:
        pytest.skip(
            f"install Node.js, build a clone of https://github.com/openjobspec/ojs-js-sdk, and set {JS_SDK} to its dist/esm/index.js"
        )
    command = [node, str(EXAMPLES / "javascript_sdk.mjs")]
    assert output_of(command, gateway) == expected("javascript-sdk")
