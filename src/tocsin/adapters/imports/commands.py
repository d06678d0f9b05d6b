"""Commands of a source as the `command` of a job or a step.

A command of a shell is a `script`, which is no template. An argument is one, so its braces are escaped.
"""

import re
from pathlib import PurePath
from typing import Any, Final

from pydantic import JsonValue

from ...domain.definition import shorten
from .drafts import Draft, literal

_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})
_OPTIONS: Final = re.compile(r"-([a-z]*)c")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACES: Final = re.compile(r"\{[{%#]")
_RESERVED: Final = "TOCSIN_"
_END: Final = "END_OF_INPUT"


def script(
    draft: Draft, shell: str, text: str, *, environment: dict[str, str] | None = None, stdin: str | None = None
) -> dict[str, Any]:
    """Return the command of a shell; its standard input becomes a part of the script."""
    if stdin is not None and PurePath(shell).name in _SHELLS:
        end = _END
        while end in stdin:
            end += "_"
        text = f"{{\n{text}\n}} <<'{end}'\n{stdin}{end}"
    elif stdin is not None:
        draft.add("stdin-not-supported", f"the standard input {shorten(stdin, 80)!r} is not given to {shell}")
    return {"script": text, **_interpreter([shell]), **_environment(draft, environment or {})}


def program(draft: Draft, argv: list[str], *, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the command with some arguments; that of a shell with `-c` is a script."""
    options = _OPTIONS.fullmatch(argv[1]) if len(argv) == 3 else None  # noqa: PLR2004 - sh -c TEXT
    if options and PurePath(argv[0]).name in _SHELLS and argv[2].strip():
        shell = [argv[0], *([f"-{options[1]}"] if options[1] else [])]
        return {"script": argv[2], **_interpreter(shell), **_environment(draft, environment or {})}
    return {"argv": [_argument(word) for word in argv], **_environment(draft, environment or {})}


def _interpreter(shell: list[str]) -> dict[str, Any]:
    return {} if shell == ["/bin/sh"] else {"interpreter": shell}


def _environment(draft: Draft, environment: dict[str, str]) -> dict[str, Any]:
    allowed = {}
    for name, value in environment.items():
        if _VARIABLE.fullmatch(name) and not name.startswith(_RESERVED):
            allowed[name] = _argument(value)
        else:
            draft.add(
                "environment-not-supported", f"the variable {shorten(name, 80)!r} has a name that a command cannot have"
            )
    return {"env": allowed} if allowed else {}


def _argument(text: str) -> str:
    """Return the template of a text."""
    escaped: str = literal(_BRACES.sub(lambda found: f"{{{{ '{found[0]}' }}}}", text))
    return escaped


def fill_command(draft: Draft, name: str) -> dict[str, JsonValue]:
    """Return the fields of a job; a command without a program becomes a function."""
    if draft.command is not None:
        return {**_work(draft.command, name), **draft.fields}
    if not draft.steps:
        return draft.fields
    dag: list[JsonValue] = []
    for step in draft.steps:
        work = {} if step.command is None else _work(step.command, f"{name}.{step.name}")
        after: dict[str, JsonValue] = {"depends_on": [*step.after]} if step.after else {}
        dag.append({"step": step.name, **work, **step.fields, **after})
    return {**draft.fields, "dag": dag}


def _work(command: dict[str, Any], function: str) -> dict[str, JsonValue]:
    if command.get("argv") == []:
        return {"function": function}
    return {"command": command["argv"] if command.keys() == {"argv"} else command}


def settings_note(drafts: list[Draft]) -> str | None:
    """Return the settings that some commands need; None: there are no commands."""
    commands = [work for draft in drafts for work in (draft.command, *(step.command for step in draft.steps)) if work]
    parts = {
        "programs": {_absolute(work["argv"][0]) for work in commands if work.get("argv")},
        "interpreters": {_absolute(work.get("interpreter", ["/bin/sh"])[0]) for work in commands if "script" in work},
        "variables": {name for work in commands for name in work.get("env", {})},
    }
    if not (parts["programs"] or parts["interpreters"]):
        return None
    texts = (f"{name}: [{', '.join(sorted(values))}]" for name, values in parts.items() if values)
    return f"start a worker with `--builtin command` and the settings builtin: {{ command: {{ {', '.join(texts)} }} }}"


def _absolute(program: str) -> str:
    """Return the path of a program, with a placeholder for an unknown folder."""
    return program if program.startswith("/") else f"/PATH/OF/{program}"
