"""`tocsin import`: the file, the report, and the exit code."""

import json

import pytest

from tests.cli.conftest import World

CLEAN = "MAILTO=''\n0 5 * * * /bin/report\n"


def test_imported_file_is_applied(world: World) -> None:
    (world.folder / "crontab").write_text("CRON_TZ=Europe/Berlin\n0 5 * * * /bin/report\n@reboot /bin/start\n")
    result = world.call("import", "crontab", "crontab", "--out", "jobs.yaml")
    assert result.code == 1
    assert result.out == ""
    assert "lost: crontab:3: start: reboot-not-supported: " in result.err
    assert "wrote 2 jobs to jobs.yaml; 1 difference to settle by hand" in result.err
    assert world.call("jobs", "apply", "-f", "jobs.yaml").code == 0
    assert [job.name for job in world.do(world.registry.jobs())] == ["report", "start"]


def test_import_without_a_loss_succeeds(world: World) -> None:
    (world.folder / "crontab").write_text(CLEAN)
    result = world.call("import", "crontab", "crontab", "--timezone", "Europe/Berlin")
    assert result.code == 0
    assert "timezone: Europe/Berlin" in result.out


def test_report_is_json_on_request(world: World) -> None:
    (world.folder / "crontab").write_text(CLEAN)
    result = world.call("import", "crontab", "crontab", "-o", "json")
    report = json.loads(result.err)
    assert (result.code, report["jobs"], report["losses"]) == (1, ["report"], 1)
    assert {finding["code"] for finding in report["findings"] if finding["loss"]} == {"timezone-assumed"}


def test_short_option_names_the_destination_too(world: World) -> None:
    (world.folder / "crontab").write_text(CLEAN)
    result = world.call("import", "crontab", "crontab", "-o", "jobs.yaml", "-o", "json")
    assert (result.code, result.out, json.loads(result.err)["jobs"]) == (1, "", ["report"])
    assert "- name: report" in (world.folder / "jobs.yaml").read_text()
    assert world.call("jobs", "export", "-o", "./exported").code == 0
    assert (world.folder / "exported").exists()


def test_format_is_no_destination(world: World) -> None:
    (world.folder / "crontab").write_text(CLEAN)
    result = world.call("import", "crontab", "crontab", "-o", "yaml")
    assert (result.code, "table" in result.err, (world.folder / "yaml").exists()) == (2, True, False)
    failed = world.call("jobs", "list", "-o", "json", "-o", "jobs.yaml")
    assert failed.failure == (2, "usage")
    assert "--out" in failed.error["message"]


def test_several_files_and_standard_input_have_unique_names(world: World) -> None:
    (world.folder / "a").write_text(CLEAN)
    result = world.call("import", "crontab", "a", "-", "--timezone", "UTC", input=CLEAN)
    assert result.code == 0
    assert "- name: report\n" in result.out
    assert "- name: report-2\n" in result.out
    assert "# standard input:2: " in result.out


def test_unusable_file_is_refused(world: World) -> None:
    (world.folder / "bad").write_bytes(b"0 5 * * * a\n\x00")
    result = world.call("import", "crontab", "bad", "absent", "--out", "jobs.yaml", "-o", "json")
    assert result.failure == (2, "invalid-definition")
    assert [problem.split(": ")[0] for problem in result.error["problems"]] == ["bad:2", "absent"]
    assert not (world.folder / "jobs.yaml").exists()
    (world.folder / "good").write_text(CLEAN)
    assert world.call("import", "crontab", "good", "--timezone", "Mars", "-o", "json").failure == (
        2,
        "invalid-timezone",
    )


@pytest.mark.parametrize("kind", ["crontab", "kubernetes", "celery", "airflow"])
@pytest.mark.parametrize("text", ["", "\n \n"])
def test_empty_input_replaces_no_file(world: World, kind: str, text: str) -> None:
    """The program before the pipe may have failed."""
    (world.folder / "jobs.yaml").write_text("jobs: []  # kept")
    result = world.call("import", kind, "-", "--out", "jobs.yaml", "-o", "json", input=text)
    assert result.failure == (2, "invalid-definition")
    assert "standard input: empty" in result.error["problems"][0]
    assert (world.folder / "jobs.yaml").read_text() == "jobs: []  # kept"


def test_device_without_an_end_is_refused(world: World) -> None:
    assert world.call("import", "kubernetes", "/dev/zero", "-o", "json").code == 2


def test_import_needs_no_server(world: World) -> None:
    (world.folder / "crontab").write_text(CLEAN)
    world.reachable = False
    assert world.call("--server", "http://127.0.0.1:1", "import", "crontab", "crontab", "--timezone", "UTC").code == 0
