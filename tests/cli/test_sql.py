"""`tocsin sql`: statements from the command line and from files."""

from pathlib import Path

import pytest

from tests.cli.conftest import World
from tocsin.domain.events import Defined, Trigger

CREATE = "CREATE JOB nightly SCHEDULE = '0 3 * * *' FUNCTION 'report'"


def test_a_statement_is_carried_out_and_recorded(world: World) -> None:
    result = world.call("sql", CREATE, "--reason", "new")
    assert (result.code, result.out) == (0, "created job 'nightly'\n")
    [fact] = world.recorded("ledger.>")
    assert isinstance(fact.message, Defined)
    assert fact.message.by is not None
    assert (fact.message.by.kind, fact.message.reason) == ("cli", "new")
    assert world.call("sql", "EXECUTE JOB nightly").code == 0
    assert isinstance(world.recorded("trigger.>")[0].message, Trigger)


def test_a_file_has_many_statements(world: World, tmp_path: Path) -> None:
    file = tmp_path / "jobs.sql"
    file.write_text(f"-- all jobs\n{CREATE};\nALTER JOB nightly SET STATE = PAUSED;\nSHOW JOBS;\n")
    result = world.call("sql", "-f", str(file))
    assert result.code == 0, result.err
    assert result.out.splitlines()[:2] == ["created job 'nightly'", "altered job 'nightly'"]
    assert "PAUSED" in result.out


def test_show_create_prints_what_sql_reads(world: World) -> None:
    world.call("sql", CREATE)
    shown = world.call("sql", "SHOW CREATE JOB nightly").out
    assert world.call("sql", "DROP JOB nightly").code == 0
    assert world.call("sql", "-f", "-", input=shown).out == "created job 'nightly'\n"
    assert world.call("sql", "SHOW CREATE JOB nightly").out == shown


def test_json_has_all_results(world: World) -> None:
    results = world.call("-o", "json", "sql", f"{CREATE}; SHOW JOBS").json["results"]
    assert [result["statement"] for result in results] == ["CREATE JOB", "SHOW JOBS"]
    assert results[1]["rows"][0][:3] == ["nightly", "ENABLED", "0 3 * * *"]


@pytest.mark.parametrize(
    ("arguments", "failure"),
    [
        ((), (2, "statement-missing")),
        (("SHOW JOBS", "-f", "x"), (2, "exclusive-options")),
        (("-f", "missing.sql"), (2, "invalid-definition")),
        (("CREATE JOB",), (2, "invalid-statement")),
        (("CREATE JOB a MAX_RETRIES = 100 FUNCTION 'f'",), (2, "invalid-definition")),
        (("DROP JOB missing",), (3, "job-not-found")),
        (("CANCEL JOB RUN '1111'",), (4, "history-not-found")),
        (("CANCEL JOB RUN 11111111-1111-7111-8111-111111111111",), (3, "not-found")),
    ],
)
def test_a_failure_has_a_code(world: World, arguments: tuple[str, ...], failure: tuple[int, str]) -> None:
    assert world.call("-o", "json", "sql", *arguments).failure == failure


def test_function_without_a_worker_is_named(world: World) -> None:
    result = world.call("sql", f"{CREATE}; SHOW JOBS")
    assert "warning: no worker reads queue `default` (job nightly)" in result.err
    answer = world.call("-o", "json", "sql", "ALTER JOB nightly SET QUEUE = 'mail'").json
    assert [(each["queue"], each["jobs"]) for each in answer["unserved"]] == [("mail", ["nightly"])]
    assert world.call("sql", "SHOW JOBS").err == ""
    assert world.call("sql", "CREATE JOB brief FUNCTION 'f'; DROP JOB brief").err == ""


def test_select_prints_a_table(world: World) -> None:
    world.call("sql", CREATE)
    result = world.call("sql", "SELECT job_name, state FROM sys.jobs")
    assert result.out.split() == ["JOB_NAME", "STATE", "nightly", "ENABLED"]


def test_nothing_is_done_if_a_statement_is_unreadable(world: World) -> None:
    assert world.call("sql", f"{CREATE}; DRP JOB x").code == 2
    assert world.recorded("ledger.>") == []


def test_a_failure_among_many_is_placed(world: World) -> None:
    result = world.call("sql", f"{CREATE};\n DROP JOB missing; DROP JOB nightly")
    assert result.code == 3
    assert "statement 2 of 3, at line 2, column 2" in result.err
    assert result.out == "created job 'nightly'\n"
    assert len(world.recorded("ledger.>")) == 1
