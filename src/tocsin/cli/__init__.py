"""The command line: one module for each noun or verb, composed in `app.py`.

commands.py   global options anywhere, every failure to its exit code (exits.py, failures.py)
session.py    what a command has at hand: settings, the installation, the registry
backend.py    the composition root, imported when needed
output.py     tables and JSON      facts.py   one line a fact      running.py   loops and signals
"""

from .app import app

__all__ = ["app", "main"]


def main() -> None:
    """Run one command and exit: the program `tocsin`."""
    app()
