"""Asking before what cannot be taken back; where nobody can be asked, it is not done."""

import typer

from ..output.format import is_interactive
from ..runtime.errors import UsageError
from ..runtime.exit_codes import Exit


def check(question: str, *, yes: bool) -> None:
    """Make sure that somebody can answer.

    Raises:
        UsageError: nobody is there to be asked, and nobody said `--yes`.
    """
    if not yes and not is_interactive():
        raise UsageError(f"{question} stdin is not a terminal; pass --yes to confirm", code="confirmation-required")


def confirm(question: str, *, yes: bool, otherwise: str) -> None:
    """Ask, unless the answer was given with `--yes`.

    Raises:
        UsageError: the answer is no, and `otherwise` says what that means; or nobody is there to be asked.
    """
    check(question, yes=yes)
    if not yes and not typer.confirm(question):
        raise UsageError(otherwise, Exit.NO, code="declined")
