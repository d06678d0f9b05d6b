"""`tocsin policy`: show and set limits for the whole installation."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from ..domain.policy import SCRATCHBIRD, UNUSED, Policy, shown, timeouts_above
from ..domain.text import counted
from ..services.documents import PolicyVersion
from ..services.jobs import Job
from ..services.operator import Operator
from .input.values import Reason
from .output.format import local
from .output.tables import table
from .runtime.errors import UsageError
from .runtime.session import Session

UNSET: Final = "none"
"""The value that unsets a field."""
_WITHOUT: Final = {
    "max_concurrent_jobs": "each worker's own concurrency",
    "job_timeout": "default: the setting execution.default_timeout; any length",
    "job_history_retention_days": "the setting execution.history_retention_days",
    "enable_job_history": "true",
}
"""What applies while a field is not set."""
_WORDS: Final[Mapping[str, object]] = {"true": True, "false": False, UNSET: None}
_INTEGER: Final = re.compile("-?[0-9]{1,18}")
MAX_NAMED: Final = 5
"""Jobs that a note names."""


def show(session: Session) -> None:
    """Show the scheduler policy, and what applies where a field is not set.

    Example: `tocsin policy show`
    """
    newest = session.ask(lambda operator: operator.policy())
    session.output.answer(_as_json(newest), lambda: [_table(newest.policy), Text(_origin(newest), style="dim")])


def set_policy(
    session: Session,
    field: Annotated[
        list[str] | None,
        typer.Argument(metavar="FIELD=VALUE", help=f"New values, such as `job_timeout=30m`; `{UNSET}` unsets a field."),
    ] = None,
    defaults: Annotated[
        bool, typer.Option("--defaults", help="Give all other fields the defaults of ScratchBird's scheduler.")
    ] = False,
    reason: Reason = None,
) -> None:
    """Change fields of the scheduler policy. Other fields stay as they are.

    Running tasks finish. Executions that are planned, and jobs that are registered, keep their timeouts.

    Example: `tocsin policy set max_concurrent_jobs=5 job_timeout=30m --reason "small machines"`
    """
    written = _written(field or ())
    if not written and not defaults:
        raise UsageError(
            "No field is given. Write FIELD=VALUE, such as `tocsin policy set job_timeout=30m`, or `--defaults`.",
            code="fields-required",
        )
    changes = {**(SCRATCHBIRD.model_dump() if defaults else {}), **written}

    async def request(operator: Operator) -> tuple[bool, PolicyVersion, Sequence[Job]]:
        changed = await operator.change_policy(changes, reason=reason)
        newest = await operator.policy()
        ceiling = newest.policy.job_timeout
        if "job_timeout" not in changes or ceiling is None:
            return changed, newest, ()
        longer = [job for job in await operator.jobs() if any(timeouts_above(job.definition, ceiling))]
        return changed, newest, longer

    changed, newest, longer = session.ask(request)
    notes = [*(f"{name}: {UNUSED[name]}" for name in written.keys() & UNUSED.keys()), *_note(longer)]
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    session.output.answer(
        {"changed": changed, "policy": _as_json(newest), "notes": notes},
        lambda: [Text("policy changed" if changed else "policy unchanged", style="yellow"), _table(newest.policy)],
    )


def _written(fields: Collection[str]) -> dict[str, object]:
    """Return the values of fields as JSON has them."""
    values: dict[str, object] = {}
    for text in fields:
        name, separator, value = (part.strip() for part in text.partition("="))
        if not separator:
            raise UsageError(f"{text!r} has no `=`: write FIELD=VALUE, such as `job_timeout=30m`", code="invalid-field")
        if name in values:
            raise UsageError(f"`{name}` is given twice: give it once", code="invalid-field")
        values[name] = _WORDS.get(value.lower(), int(value) if _INTEGER.fullmatch(value) else value)
    return values


def _note(longer: Sequence[Job]) -> Iterator[str]:
    if longer:
        names = ", ".join(job.name for job in longer[:MAX_NAMED]) + (", …" if len(longer) > MAX_NAMED else "")
        yield f"{counted(len(longer), 'job')} with a longer timeout, which they keep until they are changed: {names}"


def _as_json(newest: PolicyVersion) -> dict[str, Any]:
    return {**asdict(newest), "policy": newest.policy.model_dump()}


def _table(policy: Policy) -> Any:  # noqa: ANN401 - a renderable
    values = shown(policy)
    return table(
        ("FIELD", "VALUE", "IF NOT SET"),
        [
            (Text(name, style="bold"), values.get(name) or Text("not set", style="dim"), Text(without, style="dim"))
            for name, without in _WITHOUT.items()
        ],
        empty="",
        least=("IF NOT SET",),
    )


def _origin(newest: PolicyVersion) -> str:
    if newest.since is None:
        return "no policy is defined"
    by = f" by {newest.by}" if newest.by else ""
    return f"version {newest.version}, since {local(newest.since)}{by}" + (
        f": {newest.reason}" if newest.reason else ""
    )
