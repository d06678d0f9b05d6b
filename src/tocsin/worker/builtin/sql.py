"""The functions `tocsin.sql` and `tocsin.procedure`: they run statements and procedures in databases of the settings."""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

from psycopg import Error, generators
from psycopg.rows import dict_row
from pydantic import JsonValue
from pydantic_core import to_json
from sqlalchemy import Connection, CursorResult, text
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import DBAPIError

from ...domain.definition import DefinitionProblem, size_of
from ...domain.definition.fields import storable
from ...domain.definition.sql_work import ProcedureCall, SqlStatement
from ...domain.formats.document import listed
from ...settings import SettingsError
from ...settings.builtin import SqlRules
from ..builtin_call import BuiltinCall, BuiltinFailure, not_allowed, wrong_input
from ..handler_runner import Threads
from .database import MAX_REASON, Check, Database

NOT_ALLOWED: Final = "sql_not_allowed"
TRANSACTION_ENDED: Final = "sql_transaction_ended"
MAX_PARAMETERS: Final = 1_048_576
"""Bytes of the parameters as JSON."""
MAX_ROWS_BYTES: Final = 49_152
"""Bytes of the rows of a result as JSON, which has room for references to secrets."""
_QUERY: Final = re.compile(r"[(\s]*SELECT\b(?!.*\bINTO\b)", re.IGNORECASE | re.DOTALL)
"""A statement whose rows PostgreSQL can send in parts."""
_CONFIGURE: Final = text(
    "SELECT set_config('tocsin.job', :job, true), set_config('tocsin.job_uuid', :job_uuid, true), "
    "set_config('tocsin.job_run_uuid', :job_run_uuid, true), "
    "set_config('tocsin.step', :step, true), set_config('tocsin.attempt', :attempt, true), "
    "set_config('tocsin.fence', :fence, true), set_config('statement_timeout', :statement_timeout, true)"
)
"""Names the execution in a transaction, and limits its statements."""
_NUMBERED: Any = PGDialect_psycopg(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call] # it has no types
"""Writes parameters as PostgreSQL reads them: `$1`."""
_SQLSTATE: Final = ord("C")
_MESSAGE: Final = ord("M")
"""Fields of an error of PostgreSQL: https://www.postgresql.org/docs/current/protocol-error-fields.html"""
_SYNTAX_ERROR: Final = "42601"
_FETCHED: Final = 500
"""Rows that are in memory at a time."""
_LARGEST_INTEGER: Final = 2**63


class _Databases:
    """The databases of the settings."""

    def __init__(self, rules: SqlRules, function: str) -> None:
        if not rules.connections:
            reason = f"required for `--builtin {function}`, and not given: name the databases that jobs may use"
            raise SettingsError(DefinitionProblem(reason, field="builtin.sql.connections", code="required"))
        threads = Threads()
        self._all = {name: Database(name, each.url, threads) for name, each in rules.connections.items()}

    def named(self, name: str) -> Database:
        if name not in self._all:
            message = (
                f"this worker has no connection {name!r}; add it to its setting `builtin.sql.connections`, or use another "
                f"queue; it has {listed(self._all)}"
            )
            raise BuiltinFailure(NOT_ALLOWED, message)
        return self._all[name]


class SqlFunction:
    """Runs statements, each in a transaction of its own."""

    def __init__(self, rules: SqlRules) -> None:
        self._databases = _Databases(rules, "sql")

    async def __call__(self, call: BuiltinCall) -> JsonValue:
        """Run the statement of a task, and return its result."""
        work = call.read(SqlStatement, "statement")
        database = self._databases.named(work.connection)
        parameters = _parameters(dict(work.parameters), call)
        is_query = _QUERY.match(work.statement) is not None
        return await _run(database, call, work.statement, parameters, max_rows=work.max_rows, is_query=is_query)


class ProcedureFunction:
    """Calls procedures, each in a transaction of its own."""

    def __init__(self, rules: SqlRules) -> None:
        self._databases = _Databases(rules, "procedure")
        self._allowed = {name: each.procedures for name, each in rules.connections.items()}
        if not any(self._allowed.values()):
            reason = "required for `--builtin procedure`, and given for no connection: list the procedures that jobs may call"
            problem = DefinitionProblem(reason, field="builtin.sql.connections.NAME.procedures", code="required")
            raise SettingsError(problem)

    async def __call__(self, call: BuiltinCall) -> JsonValue:
        """Call the procedure of a task, and return its result."""
        work = call.read(ProcedureCall, "statement")
        database = self._databases.named(work.connection)
        procedure = _allowed_name(work.name, self._allowed[work.connection])
        if procedure is None:
            message = not_allowed(f"the procedure {work.name}", f"sql.connections.{work.connection}.procedures")
            raise BuiltinFailure(NOT_ALLOWED, message)
        if database.is_sqlite:
            raise wrong_input("SQLite has no procedures; write `sql`")
        written = {f"argument_{number}": value for number, value in enumerate(work.arguments)}
        # The type of the parameter decides, because a number as text has none of its own.
        arguments = {
            name: value if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in _parameters(written, call).items()
        }
        name = ".".join(f'"{part}"' for part in procedure.split("."))
        statement = f"CALL {name}({', '.join(f':{argument}' for argument in arguments)})"
        return await _run(database, call, statement, arguments, max_rows=1, is_query=False)


def _allowed_name(name: str, patterns: Sequence[str]) -> str | None:
    """Return the procedure that a job means; None: no pattern allows it.

    A name without a schema gets that of the first pattern that covers it, so the database's search path does not decide.
    """
    schema, _, own = name.rpartition(".")
    if name in patterns or (schema and f"{schema}.*" in patterns):
        return name
    pairs = (pattern.rpartition(".") for pattern in patterns if not schema)
    return next((f"{place}.{own}" for place, _, covered in pairs if place and covered in {own, "*"}), None)


def _parameters(written: Mapping[str, JsonValue], call: BuiltinCall) -> dict[str, Any]:
    """Return the values that are bound; a list or a mapping as its JSON."""
    rendered = call.render_json(dict(written), limit=MAX_PARAMETERS)
    values = rendered if isinstance(rendered, dict) else {}
    for name, value in values.items():
        if isinstance(value, int) and not -_LARGEST_INTEGER <= value < _LARGEST_INTEGER:
            raise wrong_input(f"the parameter {name} has more than 64 bits")
        if isinstance(value, str) and value != storable(value):
            raise wrong_input(f"the parameter {name} has a character that a database does not store (U+0000)")
    return {
        name: to_json(value).decode() if isinstance(value, dict | list) else value for name, value in values.items()
    }


async def _run(
    database: Database,
    call: BuiltinCall,
    statement: str,
    parameters: Mapping[str, Any],
    *,
    max_rows: int,
    is_query: bool,
) -> JsonValue:
    started = time.monotonic()

    def work(connection: Connection, check: Check) -> JsonValue:
        is_streamed = False
        if not database.is_sqlite:
            if not parameters:
                _check_single(database, connection, statement, call.redact)
            is_streamed = _returns_rows(connection, statement, parameters)
            _configure(connection, call, call.timeout - (time.monotonic() - started))
        check()
        if is_streamed:
            answer = _streamed(connection, statement, parameters, max_rows, check)
        else:
            options = {"stream_results": True, "max_row_buffer": _FETCHED} if is_query else {}
            with connection.execute(text(statement), parameters, execution_options=options) as result:
                answer = _result(result, max_rows, check)
        _check_transaction(connection)
        return answer

    return await database.transaction(work, call.redact)


def _configure(connection: Connection, call: BuiltinCall, left: float) -> None:
    """Name the execution in the transaction, and limit its statements to some seconds."""
    context = call.context
    values = {
        "job": context.job,
        "job_uuid": call.job_uuid or "",
        "job_run_uuid": context.execution_id,
        "step": context.step,
        "attempt": str(context.attempt),
        "fence": str(context.fence),
        "statement_timeout": str(min(max(1, int(left * 1_000)), 2**31 - 1)),
    }
    connection.execute(_CONFIGURE, values)


def _returns_rows(connection: Connection, statement: str, parameters: Mapping[str, Any]) -> bool:
    """Return whether PostgreSQL says that a statement has rows, which it can send singly.

    It answers in a transaction of its own, because an error would end that of the statement, and a pooler such as PgBouncer may give
    the two requests to different connections otherwise. False also if it needs the values of parameters for that.
    """
    numbered = text(statement).compile(dialect=_NUMBERED)
    driver: Any = connection.connection.dbapi_connection
    if not parameters.keys() >= numbered.params.keys():
        return False
    try:
        with driver.transaction(force_rollback=True):
            prepared = driver.pgconn.prepare(b"", str(numbered).encode(driver.info.encoding))
            if prepared.error_message:
                return False
            # `describe_prepared` would hold up all threads until the server answers.
            driver.pgconn.send_describe_prepared(b"")
            [described] = driver.wait(generators.execute(driver.pgconn))
    except Error:  # the statement itself then fails in the same way
        return False
    return bool(described.nfields > 0)


def _streamed(
    connection: Connection, statement: str, parameters: Mapping[str, Any], max_rows: int, check: Check
) -> dict[str, JsonValue]:
    """Run a statement of PostgreSQL that has rows, with a single row in memory."""
    compiled = text(statement).compile(dialect=connection.dialect)
    driver: Any = connection.connection.dbapi_connection
    try:
        with driver.cursor(row_factory=dict_row) as cursor, closing(cursor.stream(str(compiled), parameters)) as rows:
            return _answer(rows, max_rows, check)
    except Error as error:
        raise DBAPIError.instance(None, None, error, Error, hide_parameters=True) from None


def _result(result: CursorResult[Any], max_rows: int, check: Check) -> dict[str, JsonValue]:
    if result.returns_rows:
        return _answer((dict(row._mapping) for row in result), max_rows, check)  # noqa: SLF001 - its public name
    return _summary(max(0, result.rowcount))


def _answer(result: Iterable[Mapping[str, Any]], max_rows: int, check: Check) -> dict[str, JsonValue]:
    rows, count, room = list[JsonValue](), 0, MAX_ROWS_BYTES
    for row in result:
        count += 1
        if count % _FETCHED == 0:
            check()
        if count <= max_rows and len(rows) == count - 1:
            shown = {storable(name): _plain(value) for name, value in row.items()}
            room -= size_of(shown)
            if room >= 0:
                rows.append(shown)
    answer = _summary(count)
    if max_rows:
        answer |= {"rows": rows, "is_cut": True} if len(rows) < count else {"rows": rows}
    return answer


def _summary(count: int) -> dict[str, JsonValue]:
    return {"rows_affected": count, "message": f"Query executed successfully, {count} rows affected"}


def _plain(value: object) -> JsonValue:  # noqa: PLR0911 - a case for each kind
    """Return a value of a database as JSON; other values become text."""
    match value:
        case None | bool():
            return value
        case int() if -_LARGEST_INTEGER <= value < _LARGEST_INTEGER:
            return value
        case float() if value - value == 0:  # neither infinite nor NaN
            return value
        case bytes() | memoryview():
            return bytes(value).hex()
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case dict():
            return {storable(str(key)): _plain(inner) for key, inner in value.items()}
        case _:
            return storable(value.isoformat() if hasattr(value, "isoformat") else str(value))


def _check_single(database: Database, connection: Connection, statement: str, redact: Callable[[str], str]) -> None:
    """Check that PostgreSQL reads one statement.

    Without parameters the driver sends a text that may have several, and one of them may commit what precedes a failure. The check is
    outside of the transaction, which it would end.
    """
    driver: Any = connection.connection.dbapi_connection
    written = str(text(statement).compile(dialect=connection.dialect)).replace("%%", "%")
    answer = driver.pgconn.prepare(b"", written.encode(driver.info.encoding))
    if answer.error_field(_SQLSTATE) == _SYNTAX_ERROR.encode():
        reason = (answer.error_field(_MESSAGE) or b"").decode(driver.info.encoding, "replace")
        message = f"{database.name}: {redact(reason)[:MAX_REASON]}; write one statement"
        raise BuiltinFailure(f"sql_state_{_SYNTAX_ERROR}", message, retryable=False)


def _check_transaction(connection: Connection) -> None:
    driver: Any = connection.connection.dbapi_connection
    is_open = driver.in_transaction if hasattr(driver, "in_transaction") else driver.info.transaction_status != 0
    if not is_open:
        message = "the statement ended its transaction, which the worker does; leave COMMIT and ROLLBACK out"
        raise BuiltinFailure(TRANSACTION_ENDED, message, retryable=False)
