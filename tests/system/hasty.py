"""Tocsin in a process that sees a healthy log at its start, whether or not the log fails later.

python -m tests.system.hasty [tocsin's own arguments]
"""

from tocsin import bootstrap
from tocsin.cli import main


async def found_there(installation: bootstrap.Installation) -> None:
    """Wait for nothing."""


if __name__ == "__main__":
    bootstrap.await_log = found_there
    main()
