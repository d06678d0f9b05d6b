"""The options of commands that run a worker."""

from typing import Annotated, TypeAlias

import typer

BuiltinFunctions: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A built-in function to offer, such as `command` or `http`, as far as the settings allow; repeatable.",
    ),
]
Secrets: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        metavar="NAME",
        help="A secret that inputs may refer to: a variable, file:/PATH or file:/FOLDER/*; repeatable.",
    ),
]
