"""`tocsin sql`: statements about jobs."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Annotated, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from ...adapters.files.text_files import STDIN, STDIN_NAME, decoded, read_source
from ...domain.definition import JobDefinition
from ...domain.ledger import JobNotFound
from ...domain.statements import Statement, read_statements
from ...domain.statements.reader import MAX_CHARACTERS
from ...domain.text import printable_lines
from ...services.operator import Operator
from ...services.statements import StatementResult, defined_jobs
from ...services.unserved import Unserved
from ..output.tables import table
from ..runtime.errors import UsageError
from ..runtime.session import Session
from .apply import unserved_by, unserved_json, warn

MAX_BYTES: Final = 4 * MAX_CHARACTERS


def sql(
    session: Session,
    statement: Annotated[
        str | None, typer.Argument(metavar="STATEMENT", help="One or more statements, separated by `;`.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE|-", help="A file of statements, or standard input.")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Reason, recorded in the events.")] = None,
) -> None:
    """Carry out statements about jobs, until the first that fails.

    All of them are read before the first is carried out: `CREATE JOB`, `ALTER JOB`, `DROP JOB`, `EXECUTE JOB`, `CANCEL JOB RUN`,
    `SHOW JOBS`, `SHOW CREATE JOB`, and `SELECT` from `sys.jobs`, `sys.job_runs`, `sys.job_dependencies`, `sys.agents` and `sys.shards`.

    Example: `tocsin sql "CREATE JOB nightly SCHEDULE = '0 3 * * *' FUNCTION 'report'"`
    """
    statements = read_statements(_text(statement, file))
    results, missing = session.ask(partial(_carry_out, session, statements, reason))
    warn(missing)
    answer = {"results": [asdict(result) for result in results], "unserved": unserved_json(missing)}
    session.output.answer(answer, list)


async def _carry_out(
    session: Session, statements: Sequence[Statement], reason: str | None, operator: Operator
) -> tuple[list[StatementResult], list[Unserved]]:
    """Return all results, each printed at once, and queues and functions without a worker."""
    results: list[StatementResult] = []
    for number, statement in enumerate(statements, 1):
        try:
            answered = await operator.sql(statement.text, reason=reason)
        except Exception:
            if len(statements) > 1:
                note = f"statement {number} of {len(statements)}, at {statement.place}, failed; places count from its beginning"
                typer.echo(note, err=True)
            raise
        for result in answered:
            session.output.print(_shown(result))
            results.append(result)
    return results, await _unserved(session, operator, results)


async def _unserved(session: Session, operator: Operator, results: Sequence[StatementResult]) -> list[Unserved]:
    definitions: list[JobDefinition] = []
    for name in defined_jobs(results):
        with suppress(JobNotFound):  # a later statement dropped it
            definitions.append((await operator.job(name)).definition)
    return await unserved_by(session, operator, definitions) if definitions else []


def _shown(result: StatementResult) -> list[RenderableType]:
    if result.statement == "SHOW CREATE JOB":
        return [Text(printable_lines(str(row[1]))) for row in result.rows]
    if result.columns:
        headings = [column.upper() for column in result.columns]
        more = [Text(f"more rows exist: {result.message}", style="dim")] if result.truncated else []
        return [table(headings, result.rows, empty="no rows"), *more]
    return [Text(result.message)]


def _text(statement: str | None, file: str | None) -> str:
    if (statement is None) is (file is None):
        raise UsageError(
            'give either a statement or a file: `tocsin sql "SHOW JOBS"`, or `tocsin sql -f jobs.sql`',
            code="statement-missing" if file is None else "exclusive-options",
        )
    if statement is not None:
        return statement
    source = file or ""
    return decoded(read_source(source, MAX_BYTES), STDIN_NAME if source == STDIN else source)
