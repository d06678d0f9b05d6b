"""The command line: a package for each noun, composed in `app.py`.

runtime/   session, backend, errors and exit codes, signals
input/     values of options
output/    tables, event lines and JSON
"""

from .app import app

__all__ = ["app", "main"]


def main() -> None:
    """Run one command and exit: the program `tocsin`."""
    app()
