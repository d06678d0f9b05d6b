"""`tocsin config`: the settings in force."""

import typer
from rich.text import Text

from ...settings import DEFAULT, WITHOUT_EFFECT, origins, shown
from ..output.tables import table
from ..runtime.session import session_of


def show(context: typer.Context) -> None:
    """Show every setting in force, and where its value comes from. Secrets are not shown."""
    session = session_of(context)
    settings = session.settings()
    values, places = shown(settings), origins(settings)
    session.output.answer(
        {
            name: {"value": value, "origin": places[name], "has_effect": name not in WITHOUT_EFFECT}
            for name, value in values.items()
        },
        lambda: [
            table(
                ("SETTING", "VALUE", "FROM", "EFFECT"),
                [
                    (
                        name,
                        value,
                        Text(places[name], style="dim" if places[name] == DEFAULT else "cyan"),
                        Text("none yet" if name in WITHOUT_EFFECT else "", style="yellow"),
                    )
                    for name, value in values.items()
                ],
                empty="",
                least=("EFFECT",),
            )
        ],
    )
