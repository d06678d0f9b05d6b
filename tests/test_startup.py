"""The libraries a process imports before it needs them."""

import subprocess
import sys
from typing import Final

import pytest

SERVER_LIBRARIES: Final = frozenset(
    {"sqlalchemy", "alembic", "fastapi", "starlette", "psycopg", "faststream", "croniter", "uvicorn", "redis"}
)
SLOW_LIBRARIES: Final = SERVER_LIBRARIES | {"pydantic", "structlog", "rich", "nats", "asyncio", "opentelemetry", "yaml"}

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
    ],
)
def test_command_imports_no_server_library(args: list[str]) -> None:
    assert imported_by(RUN.format(args=args)) & SERVER_LIBRARIES == set()


@pytest.mark.parametrize(
    "code",
    [
        "from tocsin import Context, NonRetryableError, Worker",
        "import tocsin.bootstrap.worker_connection",
        "import tocsin.adapters.http.client",
    ],
)
def test_worker_and_client_import_no_server_library(code: str) -> None:
    assert imported_by(code) & SERVER_LIBRARIES == set()
