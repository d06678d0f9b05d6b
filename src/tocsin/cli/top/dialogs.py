"""Dialogs of the screen: a question with an optional reason, and the keys."""

from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static
from typing_extensions import override

KEYS: Final = {
    "1 2 3 4": "show a table",
    "↑ ↓": "select a row",
    "p": "pause the job of the row, or resume it",
    "t": "trigger the job of the row",
    "c": "cancel the execution of the row",
    "l": "follow the log lines of the execution, or of the job's newest one",
    "/": "filter all tables by a text; Escape ends the filter",
    "?": "show the keys",
    "q": "quit",
}
_STYLE: Final = """
    align: center middle;
    & > Vertical { width: 72; max-width: 95%; height: auto; padding: 1 2; border: round $primary; background: $surface; }
"""


class Question(ModalScreen[str | None]):
    """A dialog for a confirmation and a reason.

    Its result is the reason, which may be empty; None: the user declined.
    """

    DEFAULT_CSS = f"Question {{ {_STYLE} }}"
    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Cancel")]

    def __init__(self, question: str) -> None:
        """Show a question, which is plain text."""
        super().__init__()
        self._question = question

    @override
    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text(self._question))
            yield Input(placeholder="Reason (optional)")
            yield Static(Text("Enter confirms, Escape declines", style="dim"))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """End the dialog with the reason."""
        self.dismiss(event.value)


class Keys(ModalScreen[None]):
    """A list of the keys."""

    DEFAULT_CSS = f"Keys {{ {_STYLE} }}"
    BINDINGS: ClassVar[list[BindingType]] = [("escape,question_mark,q,enter", "dismiss(None)", "Close")]

    @override
    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text("\n".join(f"{keys:<8} {meaning}" for keys, meaning in KEYS.items())))
