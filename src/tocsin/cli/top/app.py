"""The Textual application of `tocsin top`."""

from typing import ClassVar

from textual.app import App
from textual.binding import BindingType
from typing_extensions import override

from .operator_thread import OperatorThread
from .screen import NowScreen


class TopApp(App[None]):
    """Shows an installation until the user quits."""

    TITLE = "tocsin top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [("ctrl+c", "quit", "Quit")]

    def __init__(self, threaded: OperatorThread, interval: float) -> None:
        """Show an installation; `interval`: seconds between two reads of a table."""
        super().__init__()
        self._threaded = threaded
        self._interval = interval

    @override
    def get_default_screen(self) -> NowScreen:
        return NowScreen(self._threaded, self._interval)
