"""Commands of a source as the `command` of a job or a step."""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

from pydantic import JsonValue

from ...domain.definition import shorten
from ...domain.definition.command import RESERVED_VARIABLES
from .drafts import Draft, literal

_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})
_DEFAULT_SHELL: Final = "/bin/sh"
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACES: Final = re.compile(r"\{[{%#]")
_END: Final = "END_OF_INPUT"


def script(
    draft: Draft,
    shell: str,
    text: str,
    *,
    environment: dict[str, str] | None = None,
    stdin: str | None = None,
    folder: str | None = None,
) -> dict[str, Any]:
    """Return the command of a shell; its standard input becomes a part of the script."""
    if stdin is not None and PurePath(shell).name in _SHELLS:
        end = _END
        while end in stdin:
            end += "_"
        text = f"{{\n{text}\n}} <<'{end}'\n{stdin}{end}"
    elif stdin is not None:
        draft.add("stdin-not-supported", f"the standard input {shorten(stdin, 80)!r} is not given to {shell}")
    variables = allowed_variables(draft, environment or {})
    return {
        "script": text,
        **({} if shell == _DEFAULT_SHELL else {"interpreter": [shell]}),
        **({} if folder is None else {"cwd": folder}),
        **({"env": variables} if variables else {}),
    }


def allowed_variables(draft: Draft, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a job can have, each value as a template."""
    allowed = {}
    for name, value in environment.items():
        if _VARIABLE.fullmatch(name) and not name.startswith(RESERVED_VARIABLES):
            allowed[name] = argument(value)
        else:
            said = f"the variable {shorten(name, 80)!r} has a name that a job cannot set"
            draft.add("environment-not-supported", said)
    return allowed


def argument(text: str) -> str:
    return str(literal(_BRACES.sub(lambda found: f"{{{{ '{found[0]}' }}}}", text)))


def fields_with_work(draft: Draft) -> dict[str, JsonValue]:
    """Return the fields of a job, with its command or its steps."""
    if draft.command is not None:
        return {"command": draft.command, **draft.fields}
    if not draft.steps:
        return draft.fields
    dag: list[JsonValue] = []
    for step in draft.steps:
        work: dict[str, JsonValue] = {} if step.command is None else {"command": step.command}
        after: dict[str, JsonValue] = {"depends_on": [*step.after]} if step.after else {}
        dag.append({"step": step.name, **work, **step.fields, **after})
    return {**draft.fields, "dag": dag}


def settings_note(drafts: list[Draft]) -> str | None:
    """Return the settings that some commands need; None: there are no commands."""
    commands = [work for draft in drafts for work in (draft.command, *(step.command for step in draft.steps)) if work]
    if not commands:
        return None
    programs = {work.get("interpreter", [_DEFAULT_SHELL])[0] for work in commands}
    interpreters = {name if name.startswith("/") else f"/PATH/OF/{name}" for name in programs}
    folders = {work["cwd"] for work in commands if "cwd" in work}
    variables = {name for work in commands for name in work.get("env", {})}
    return worker_note(
        "command", interpreters=sorted(interpreters), directories=sorted(folders), variables=sorted(variables)
    )


def worker_note(builtin: str, **settings: Sequence[str]) -> str:
    """Return how to start a worker for a built-in function with some settings."""
    texts = (f"{name}: [{', '.join(values)}]" for name, values in settings.items() if values)
    written = f"builtin: {{ {builtin}: {{ {', '.join(texts)} }} }}"
    return f"start a worker with `--builtin {builtin}` and the settings {written}"
