"""The libraries a process imports before it needs them."""

import json
import socket
import subprocess
import sys
from typing import Final

import pytest

from tocsin.cli.runtime.errors import Exit

SERVER_LIBRARIES: Final = frozenset(
    {"sqlalchemy", "alembic", "fastapi", "starlette", "psycopg", "faststream", "croniter", "uvicorn", "redis"}
)
SCREEN_LIBRARIES: Final = frozenset({"textual"})
SLOW_LIBRARIES: Final = (
    SERVER_LIBRARIES | SCREEN_LIBRARIES | {"pydantic", "structlog", "rich", "nats", "asyncio", "opentelemetry", "yaml"}
)

PROGRAM: Final = """
import sys
{code}
print("imported:", *sorted(name for name in sys.modules if "." not in name))
"""
RUN: Final = """
from tocsin.cli import main
sys.argv = ["tocsin", *{args!r}]
try:
    main()
except SystemExit:
    pass
"""

TIMED_RUN: Final = """
import sys, time
from tocsin.cli import main
sys.argv = ["tocsin", *{args!r}]
try:
    main()  # imports what the command needs
except SystemExit:
    pass
started = time.monotonic()
try:
    main()
finally:
    print(time.monotonic() - started)
"""
NOT_LISTENING_WITHIN_S: Final = 1.5


def imported_by(code: str) -> set[str]:
    program = PROGRAM.format(code=code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_version_option_imports_only_the_parser() -> None:
    imported = imported_by(RUN.format(args=["--version"]))
    assert "typer" in imported
    assert imported & SLOW_LIBRARIES == set()


@pytest.mark.parametrize(
    "args",
    [
        ["jobs", "list", "--nats", "nats://127.0.0.1:1"],
        ["executions", "show", "0193a5b0", "--nats", "nats://127.0.0.1:1"],
        ["version"],
        ["top", "--once", "--nats", "nats://127.0.0.1:1"],
    ],
)
def test_command_imports_no_library_of_an_extra(args: list[str]) -> None:
    assert imported_by(RUN.format(args=args)) & (SERVER_LIBRARIES | SCREEN_LIBRARIES) == set()


@pytest.mark.parametrize(
    "code",
    [
        "from tocsin import Context, NonRetryableError, Worker",
        "import tocsin.bootstrap.workers",
        "import tocsin.adapters.http.client",
    ],
)
def test_worker_and_client_import_no_server_library(code: str) -> None:
    assert imported_by(code) & SERVER_LIBRARIES == set()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("command", [["jobs", "list"], ["status"], ["doctor"], ["init"], ["executions", "list"]])
def test_closed_nats_port_is_reported_without_patience(command: list[str], host: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    code = TIMED_RUN.format(args=[*command, "-o", "json", "--nats", f"nats://{host}:{port}"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == Exit.UNREACHABLE
    assert [json.loads(line)["error"]["kind"] for line in done.stderr.splitlines()] == ["unreachable"] * 2
    assert float(done.stdout.splitlines()[-1]) < NOT_LISTENING_WITHIN_S
