"""Commands of a source as the work of a job.

The worker needs a function with the name of the job, which gets the command as its input.
"""

from typing import Any

from pydantic import JsonValue

from .drafts import Draft, literal


def command_input(
    argv: list[str], *, environment: dict[str, str] | None = None, stdin: str | None = None
) -> dict[str, Any]:
    """Return the command as an input."""
    return literal(  # type: ignore[no-any-return]
        {
            "command": argv,
            **({"environment": environment} if environment else {}),
            **({"stdin": stdin} if stdin is not None else {}),
        }
    )


def fill_command(draft: Draft, name: str) -> dict[str, JsonValue]:
    """Return the fields of a job; each command becomes a function and its input."""
    if draft.command is not None:
        draft.add("command-as-input", f"the worker needs a function `{name}` that runs `input.command`")
        return {"function": name, "input": draft.command, **draft.fields}
    if not draft.steps:
        return draft.fields
    dag: list[JsonValue] = []
    for step in draft.steps:
        work: dict[str, JsonValue] = {}
        if step.command is not None:
            function = f"{name}.{step.name}"
            draft.add("command-as-input", f"the worker needs a function `{function}` that runs `input.command`")
            work = {"function": function, "input": step.command}
        after: dict[str, JsonValue] = {"depends_on": [*step.after]} if step.after else {}
        dag.append({"step": step.name, **work, **step.fields, **after})
    return {**draft.fields, "dag": dag}
