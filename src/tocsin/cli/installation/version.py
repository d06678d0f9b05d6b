"""`tocsin version`."""

import platform

import typer
from rich.text import Text

from ... import __version__
from ..runtime.session import session_of


def version(context: typer.Context) -> None:
    """Print the version."""
    session_of(context).output.answer(
        {"tocsin": __version__, "python": platform.python_version()}, lambda: [Text(f"tocsin {__version__}")]
    )
