"""The statements of ScratchBird's specification, by `tocsin sql` against `tocsin dev` and PostgreSQL."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_acceptance import program, running
from tests.databases import postgresql
from tests.worker.builtin.sql_given import rows
from tocsin.domain.statements import CreateJob, read_statements

STATEMENTS = read_statements(Path(__file__).with_name("scratchbird.sql").read_text())
REFUSED = {
    "monthly_compliance_report": "needs at least 3 replicas",
    "process_customer_orders": "an occurrence has the job's own input, and that has no `customer_id`",
    "process_customer_reports": "an occurrence has the job's own input, and that has no `customer_id`",
}
"""Jobs that cannot run as written: one server is no quorum, and an instant has no customer."""
DATABASE = (
    "CREATE TABLE calls (name text)",
    "CREATE TABLE tables ()",  # for `ANALYZE TABLES`
    "CREATE PROCEDURE extract_daily_sales() LANGUAGE sql AS $$ INSERT INTO calls VALUES ('daily') $$",
    "CREATE PROCEDURE process_pending_orders(customer int) LANGUAGE sql AS $$ INSERT INTO calls VALUES (customer) $$",
    "CREATE FUNCTION check_cluster_health() RETURNS text LANGUAGE sql AS $$ SELECT 'well' $$",
)


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgresql() as server:
        url = server.new_database()
        for statement in DATABASE:
            rows(url, statement)
        yield url


@pytest.mark.timeout(300)  # 26 programs, one after the other
def test_statements_of_the_specification_run_as_written(database: str, tmp_path: Path) -> None:
    (tmp_path / "shards.yaml").write_text("shards: [{shard_id: shard_001}, {shard_id: shard_002}]\n")
    default = {"TOCSIN_EXECUTION__DEFAULT_CONNECTION": "main"}
    connection = {"TOCSIN_BUILTIN__SQL__CONNECTIONS__MAIN__URL": database}
    with running(tmp_path, "--data-dir", "data", "--builtin", "sql", worker=None, **connection) as dev:

        def ask(*args: str, **variables: str) -> dict[str, Any]:
            result = program(*args, "--nats", dev.url, "--data-dir", "data", "-o", "json", cwd=tmp_path, **variables)
            answer: dict[str, Any] = json.loads(result.stdout or result.stderr)
            return answer

        def fails(text: str, **variables: str) -> str:
            message: str = ask("sql", text, **variables).get("error", {}).get("message", "")
            return message

        ask("shards", "apply", "-f", "shards.yaml", "--yes")
        assert "`connection`: name the database" in fails(STATEMENTS[0].text)
        for statement in STATEMENTS:
            name = statement.text.split()[2] if isinstance(statement, CreateJob) else ""
            failure = fails(statement.text, **default)
            assert bool(failure) is (name in REFUSED), (statement.text, failure)
            assert REFUSED.get(name, "") in failure
        with_customer = next(s.text for s in STATEMENTS if "process_pending_orders" in s.text)
        assert fails(f'{with_customer} WITH \'{{"input": {{"customer_id": 7}}}}\'', **default) == ""
        runs = {
            "extract-daily-data": 1,
            "cluster-health-check": 1,
            "process-customer-orders": 1,
            "analyze-all-tables": 2,
        }
        for job, number in runs.items():
            assert fails(f"EXECUTE JOB {job.replace('-', '_')}") == ""
            for _ in range(number):
                dev.fact("completed", job)
        [listed] = ask("sql", "SELECT group_concat(job_name, ' ') FROM sys.jobs WHERE job_name LIKE 'etl%'")["results"]
        assert sorted(listed["rows"][0][0].split()) == ["etl-extract", "etl-load", "etl-transform"]
    assert sorted(rows(database, "SELECT name FROM calls")) == [("7",), ("daily",)]
