"""The command line over an HTTP API: `--server URL` answers as NATS itself would."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from tests.cli.conftest import CallResult
from tests.domain.given import NOON, admitted, first_tasks, output_subject, plan
from tests.http.conftest import World
from tests.http.served import served
from tocsin.adapters.http import client
from tocsin.cli import app
from tocsin.domain.access import Role
from tocsin.domain.agent import AgentRecord, AgentState
from tocsin.domain.events import AgentRegistered, DeadLettered, Defined, Failed, Failure, OutputLine
from tocsin.subjects import Bucket, Stream

NAMES = """
jobs:
  - name: report
    function: f
    schedule: "@daily"
    depends_on: [nowhere]
    triggers: [{nats: orders.new}]
    notify: {channels: [pagr], on_failure: true}
"""
RUN = "11111111-1111-7111-8111-111111111111"
TODAY = ("executions_today", "bytes_today", "changed_bytes_today")
LETTER = "22222222-2222-7222-8222-222222222222"
FILE = """
jobs:
  - {name: nightly, schedule: "0 4 * * *", function: f}
  - {name: hourly, schedule: "@hourly", function: f}
"""


async def prepare(world: World) -> None:
    """A job, an execution at work, and a dead letter, in the log and in the history."""
    await world.given(name="nightly", owner="cli")
    definition = await world.log.last("ledger.nightly.defined")
    assert definition is not None
    assert isinstance(definition.message, Defined)
    for execution_id in (RUN, LETTER):
        update = {"job": "nightly", "execution_id": execution_id, "plan": plan()}
        begun = admitted().changed(**update)
        sequence = 0
        for event in (begun, *first_tasks(begun)):
            sequence = await world.log.append(event, expect=sequence)
    line = OutputLine(job="nightly", execution_id=RUN, step="main", attempt=1, time=NOON, text="loading")
    await world.log.publish(output_subject(line), line, message_id="line")
    failed = Failed(job="nightly", execution_id=LETTER, scheduled_time=NOON, trigger="cron", dead_letter=True)
    await world.log.append(failed, expect=(await world.log.load(f"execution.nightly.{LETTER}.>"))[-1].sequence)
    letter = DeadLettered(
        job="nightly",
        id=LETTER,
        execution_id=LETTER,
        scheduled_time=NOON,
        trigger="cron",
        definition=definition.sequence,
        attempts=(),
        last_error=Failure(type="ValueError", message="no"),
        first_attempt=NOON,
        last_attempt=NOON,
    )
    await world.log.append(letter, expect=0)
    facts = [*await world.log.read("execution.>"), *await world.log.read("dead-letter.>")]
    await world.history.record(Stream.LOG, facts, after=0, upto=facts[-1].sequence)
    agent = AgentRecord(name="mail-1", agent_id=RUN, state=AgentState.ENABLED)
    registered = AgentRegistered(name=agent.name, agent_id=agent.agent_id)
    await world.log.append(registered, expect=0)
    await world.projections.put(Bucket.AGENTS, f"mail-1.{RUN}", agent.model_dump_json().encode())
    if (world.folder / "guarded").exists():
        (world.folder / "token").write_text(await world.token("eve", Role.VIEWER))


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with served(tmp_path, prepare) as url:
        yield url


def call(url: str, *args: str, **environment: str) -> CallResult:
    result = CliRunner().invoke(app, ["--server", url, *args], env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return CallResult(result.exit_code, result.stdout, result.stderr)


@pytest.mark.parametrize("reason", ["Wärme 🔥 日本\n2. Zeile", '50%25 "off"', "UTF-8''a", " x "])
def test_reason_may_be_any_text(reason: str, tmp_path: Path) -> None:
    worlds: list[World] = []

    async def prepare_and_keep(world: World) -> None:
        await prepare(world)
        worlds.append(world)

    with served(tmp_path, prepare_and_keep) as url:
        for command in (
            ("jobs", "trigger", "nightly"),
            ("jobs", "pause", "nightly"),
            ("jobs", "resume", "nightly"),
            ("executions", "cancel", RUN),
            ("agents", "disable", "mail-1"),
            ("queues", "pause", "default"),
            ("dead-letters", "resolve", LETTER),
            ("jobs", "delete", "nightly", "--yes"),
        ):
            result = call(url, *command, "--reason", reason)
            assert result.code == 0, result.err
    for subject in (
        "trigger.nightly.*",
        "ledger.nightly.paused",
        "ledger.nightly.resumed",
        f"execution.nightly.{RUN}.cancelled",
        "agent.*.*.switched",
        "queue.default.paused",
        f"dead-letter.nightly.{LETTER}.resolved",
        "ledger.nightly.deleted",
    ):
        facts = asyncio.run(worlds[0].facts(subject))
        assert [getattr(fact.message, "reason", None) for fact in facts] == [reason], subject


def test_refusal_keeps_the_code_of_the_api(url: str) -> None:
    refused = call(url, "-o", "json", "jobs", "pause", "nightly", "--reason", "x" * 10_000)
    assert refused.failure == (1, "invalid-request")


def test_queues_are_listed_and_shown(url: str) -> None:
    [queue] = call(url, "-o", "json", "queues", "list").json
    assert (queue["name"], queue["jobs"]) == ("default", ["nightly"])
    assert "nightly" in call(url, "queues", "show", "default").out
    assert call(url, "-o", "json", "queues", "show", "defualt").failure == (3, "not-found")


def test_queues_are_paused_and_resumed(url: str) -> None:
    assert call(url, "queues", "pause", "default", "--reason", "wärme").out == "paused default\n"
    assert call(url, "queues", "pause", "default").out == "paused default (it was already paused)\n"
    [queue] = call(url, "-o", "json", "queues", "list").json
    assert queue["paused"]["reason"] == "wärme"
    assert "paused" in call(url, "queues", "list").out
    assert "because: wärme" in call(url, "queues", "show", "default").out
    assert call(url, "queues", "resume", "default").out == "resumed default\n"
    assert call(url, "queues", "resume", "default").out == "resumed default (it was not paused)\n"
    for verb in ("pause", "resume", "purge"):
        options = ("--yes",) if verb == "purge" else ()
        missing = call(url, "-o", "json", "queues", verb, "defualt", *options)
        assert missing.failure == (3, "not-found")
        assert "Did you mean 'default'?" in missing.error["message"]


def test_shard_map_is_applied_and_listed(url: str, tmp_path: Path) -> None:
    file = tmp_path / "shards.yaml"
    file.write_text("shards: [b, {shard_id: a, name: Europe, labels: {zone: x}}]")
    apply = ("shards", "apply", "-f", str(file))
    assert call(url, *apply, "--dry-run").out == "+ a  ACTIVE\n+ b  ACTIVE\n"
    assert call(url, "-o", "json", "shards", "list").json == {"version": 0, "shards": []}
    assert call(url, *apply, "--reason", "wärme").code == 0
    assert call(url, *apply).out == "the shard map is up to date\n"
    listed = call(url, "-o", "json", "shards", "list").json
    assert [(shard["shard_id"], shard["labels"]) for shard in listed["shards"]] == [("a", {"zone": "x"}), ("b", {})]
    file.write_text("shards: [{shard_id: a, state: DRAINING, name: Europe, labels: {zone: x}}]")
    assert call(url, "-o", "json", *apply).failure == (2, "confirmation-required")
    assert call(url, *apply, "--yes").out == "~ a  ACTIVE -> DRAINING\n- b\n"
    assert "DRAINING" in call(url, "shards", "list").out
    assert [shard["owner"] for shard in listed["shards"]] == [None, None]
    assert "any worker" in call(url, "shards", "list").out


def test_shard_map_of_another_operator_is_kept(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "shards.yaml"
    file.write_text("shards: [a, b]")
    apply = ("-o", "json", "shards", "apply", "-f", str(file))
    assert call(url, *apply).code == 0

    def other_operator(*_: object, **__: object) -> None:
        httpx.put(f"{url}/v1/shards", json={"shards": [{"shard_id": "c"}]}).raise_for_status()

    monkeypatch.setattr("tocsin.cli.shards.confirm", other_operator)
    file.write_text("shards: [a]")
    assert call(url, *apply).failure == (1, "conflict")
    assert [shard["shard_id"] for shard in call(url, "-o", "json", "shards", "list").json["shards"]] == ["c"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("shards: [A.b]", "wrong-shard-map"),
        ("shards: [a, a]", "wrong-shard-map"),
        ("shards: [{shard_id: a, state: GONE}]", "wrong-shard-map"),
        ("shards: [{shard_id: a, owner: x}]", "wrong-shard-map"),
        ("shards: 7", "wrong-shard-map"),
        ("[a]", "wrong-shard-map"),
        ("shards: [a]\n---\nshards: [b]", "invalid-definition"),
    ],
)
def test_wrong_shard_map_is_refused(url: str, tmp_path: Path, text: str, code: str) -> None:
    file = tmp_path / "shards.yaml"
    file.write_text(text)
    assert call(url, "-o", "json", "shards", "apply", "-f", str(file)).failure == (2, code)
    assert call(url, "-o", "json", "shards", "list").json["version"] == 0


def test_namespaces_are_declared_listed_and_shown(url: str, tmp_path: Path) -> None:
    file = tmp_path / "namespaces.yaml"
    file.write_text("namespaces: [payments, {name: billing, description: of B, max_jobs: 7}]")
    apply = ("namespaces", "apply", "-f", str(file))
    planned = "+ billing  0 jobs\n    max_jobs 7\n+ payments  0 jobs\n"
    assert call(url, *apply, "--dry-run").out == planned
    assert call(url, "-o", "json", "namespaces", "list").json == {"version": 0, "namespaces": []}
    assert call(url, *apply, "--reason", "wärme").code == 0
    assert call(url, *apply).out == "the namespaces are up to date\n"
    listed = call(url, "-o", "json", "namespaces", "list").json["namespaces"]
    none = dict.fromkeys(("max_jobs", "max_running", "executions_per_day", "bytes_per_day"))
    billing = {**none, "name": "billing", "description": "of B", "max_jobs": 7}
    assert listed == [billing, {**none, "name": "payments", "description": ""}]
    shown = call(url, "-o", "json", "namespaces", "show", "billing").json
    assert shown == {**billing, "jobs": 0, "queues": [], **dict.fromkeys(TODAY, 0)}
    assert "quotas: max_jobs 7" in call(url, "namespaces", "show", "billing").out
    assert call(url, "-o", "json", "namespaces", "show", "other").failure == (3, "namespace-not-found")
    quotas = "{name: billing, max_jobs: 9, executions_per_day: 1000}"
    file.write_text(f"namespaces: [payments, {quotas}]")
    assert call(url, *apply).out == "~ billing  0 jobs\n    max_jobs 7 -> 9, executions_per_day 1,000\n"
    assert "today: 0 executions, 0 bytes" in call(url, "namespaces", "show", "billing").out
    file.write_text("namespaces: [payments]")
    assert call(url, "-o", "json", *apply).failure == (2, "confirmation-required")
    assert call(url, *apply, "--yes").out == "- billing  0 jobs\n"
    file.write_text("namespaces: [Payments]")
    assert call(url, "-o", "json", *apply).failure == (2, "wrong-namespaces")


def test_token_is_bound_to_declared_namespaces(url: str, tmp_path: Path) -> None:
    file = tmp_path / "namespaces.yaml"
    file.write_text("namespaces: [payments]")
    create = ("-o", "json", "tokens", "create", "ci", "--role", "scheduler-author", "--namespace", "payments")
    assert call(url, *create).code != 0
    assert call(url, "namespaces", "apply", "-f", str(file)).code == 0
    assert call(url, *create).json["namespaces"] == ["payments"]


def test_policy_is_set_and_shown(url: str) -> None:
    changed = call(url, "-o", "json", "policy", "set", "job_timeout=30m", "--reason", "wärme").json
    assert changed["changed"] is True
    assert call(url, "-o", "json", "policy", "set", "max_concurrent_jobs=5").json["changed"] is True
    shown = call(url, "-o", "json", "policy", "show").json
    assert (shown["policy"]["job_timeout"], shown["policy"]["max_concurrent_jobs"]) == (1_800.0, 5)
    assert call(url, "-o", "json", "policy", "set", "job_timeout=soon").failure == (2, "invalid-policy")


def test_purge_needs_a_confirmation(url: str) -> None:
    assert call(url, "-o", "json", "queues", "purge", "default").failure == (2, "confirmation-required")


def test_agents_are_listed_switched_and_drained(url: str) -> None:
    [agent] = call(url, "-o", "json", "agents", "list").json
    assert (agent["name"], agent["agent_id"], agent["state"]) == ("mail-1", RUN, "ENABLED")
    assert "mail-1" in call(url, "agents", "show", RUN).out
    assert call(url, "agents", "disable", "mail-1", "--reason", "wärme").out == "disabled mail-1\n"
    assert call(url, "agents", "disable", "mail-1").out == "disabled mail-1 (it was already)\n"
    assert call(url, "agents", "enable", "mail-1").out == "enabled mail-1\n"
    assert call(url, "-o", "json", "agents", "drain", "mail-1").json["agents"] == [RUN]
    assert call(url, "-o", "json", "agents", "drain", "mail-1").json["agents"] == []
    missing = call(url, "-o", "json", "agents", "disable", "mail-2")
    assert missing.failure == (3, "not-found")
    assert "Did you mean 'mail-1'?" in missing.error["message"]


def test_jobs_are_listed_shown_paused_triggered_and_deleted(url: str) -> None:
    [job] = call(url, "-o", "json", "jobs", "list").json
    assert (job["name"], job["state"], job["schedule"]) == ("nightly", "active", "0 3 * * *")
    shown = call(url, "jobs", "show", "nightly").out
    assert "function: f" in shown
    assert "runs    1, of which 1 failed and 0 were skipped; 0 running now" in shown
    assert re.search(r"^ended   failed \d{4}-", shown, re.MULTILINE)
    assert call(url, "jobs", "pause", "nightly", "--reason", "wärme").out == "paused nightly\n"
    assert call(url, "jobs", "pause", "nightly").out == "paused nightly (it was already)\n"
    assert call(url, "-o", "json", "jobs", "show", "nightly").json["paused"] is True
    assert call(url, "jobs", "resume", "nightly").code == 0
    assert call(url, "-o", "json", "jobs", "trigger", "nightly").json["execution_id"]
    assert call(url, "jobs", "delete", "nightly", "--yes").out == "deleted nightly\n"
    assert call(url, "-o", "json", "jobs", "list").json == []


@pytest.mark.parametrize(
    ("server", "failure"),
    [
        ("http://127.0.0.1:1", (4, "api-unavailable")),
        ("127.0.0.1:8062", (2, "invalid-server-url")),
        ("nats://127.0.0.1:4222", (2, "invalid-server-url")),
        ("http://[::1", (2, "invalid-server-url")),
        ("http://127.0.0.1:80620", (2, "invalid-server-url")),
    ],
)
def test_server_that_is_no_api_is_reported(server: str, failure: tuple[int, str]) -> None:
    result = call(server, "-o", "json", "jobs", "list")
    assert result.failure == failure
    assert server in result.error["message"]


def test_logged_lines_are_read(url: str) -> None:
    [line] = map(json.loads, call(url, "-o", "json", "executions", "logs", RUN[:8]).out.splitlines())
    assert (line["step"], line["text"]) == ("main", "loading")
    assert call(url, "-o", "json", "executions", "show", RUN).json["lines"] == [line]


def test_files_are_applied_by_a_plan(url: str, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(FILE)
    diff = call(url, "jobs", "diff", "-f", str(file))
    assert diff.code == 1
    assert 'schedule: "0 3 * * *" → "0 4 * * *"' in diff.out
    assert "7 occurrences added, 7 removed" in diff.out
    assert "fires immediately: none" in diff.out
    assert "1 to create, 1 to update" in call(url, "jobs", "apply", "-f", str(file)).out
    assert "2 unchanged" in call(url, "jobs", "apply", "-f", str(file)).out
    file.write_text(FILE.replace("nightly", "other"))
    assert "1 to create, 1 to delete" in call(url, "jobs", "apply", "-f", str(file), "--prune", "--yes").out
    assert [job["name"] for job in call(url, "-o", "json", "jobs", "list").json] == ["hourly", "other"]


def test_refused_plan_changes_and_prints_nothing(url: str, tmp_path: Path) -> None:
    namespaces, file = tmp_path / "namespaces.yaml", tmp_path / "jobs.yaml"
    namespaces.write_text("namespaces: [{name: team, max_jobs: 2}]")
    assert call(url, "namespaces", "apply", "-f", str(namespaces)).code == 0
    jobs = [f"  - {{name: team.j{number}, function: f, queue: team.q}}" for number in range(4)]
    apply = ("jobs", "apply", "-f", str(file), "--prune", "--yes")
    file.write_text("\n".join(["jobs:", *jobs[:3]]))
    refused = call(url, *apply)
    assert (refused.code, refused.out) == (2, "")
    assert "max_jobs" in refused.err
    assert [job["name"] for job in call(url, "-o", "json", "jobs", "list").json] == ["nightly"]
    file.write_text("\n".join(["jobs:", *jobs[:2]]))
    assert "2 to create" in call(url, *apply).out
    file.write_text("\n".join(["jobs:", *jobs[2:]]))
    assert "2 to create, 2 to delete" in call(url, *apply).out


@pytest.mark.parametrize("checked", [client.MAX_CHECKED, 0])
def test_refused_replacement_deletes_nothing(
    checked: int, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MAX_CHECKED", checked)
    namespaces, file = tmp_path / "namespaces.yaml", tmp_path / "jobs.yaml"
    namespaces.write_text("namespaces: [{name: team, max_jobs: 1}]")
    assert call(url, "namespaces", "apply", "-f", str(namespaces)).code == 0
    file.write_text("jobs: [{name: team.full, function: f, queue: team.q}]")
    assert call(url, "jobs", "apply", "-f", str(file), "--owner", "other").code == 0
    file.write_text("jobs: [{name: report, function: f}]")
    apply = ("jobs", "apply", "-f", str(file), "--owner", "me", "--prune", "--yes")
    assert call(url, *apply).code == 0
    file.write_text("jobs: [{name: team.report, function: f, queue: team.q}]")
    refused = call(url, *apply)
    assert (refused.code, refused.out) == (2, "")
    assert "report" in [job["name"] for job in call(url, "-o", "json", "jobs", "list").json]


def test_new_job_takes_over_a_deleted_webhook(url: str, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    for name in ("first", "second"):
        trigger = "{webhook: /hooks/orders, secret: '${env:ORDERS}'}"
        file.write_text(f"jobs: [{{name: {name}, function: f, triggers: [{trigger}]}}]")
        applied = call(url, "jobs", "apply", "-f", str(file), "--owner", "me", "--prune", "--yes")
        assert applied.code == 0, applied.err
    names = [job["name"] for job in call(url, "-o", "json", "jobs", "list").json]
    assert ("first" in names, "second" in names) == (False, True)


def test_declined_deletion_shows_the_plan(url: str, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text("jobs: []")
    declined = call(url, "jobs", "apply", "-f", str(file), "--prune", "--owner", "cli")
    assert (declined.code, declined.out.splitlines()[-1]) == (2, "1 to delete")


def test_executions_are_listed_shown_and_cancelled(url: str) -> None:
    rows = call(url, "-o", "json", "executions", "list", "--status", "pending").json
    assert [row["execution_id"] for row in rows] == [RUN]
    shown = call(url, "-o", "json", "executions", "show", RUN).json
    assert (shown["job"], shown["facts"][0]["fact"]["type"]) == ("nightly", "admitted")
    assert call(url, "-o", "json", "executions", "show", RUN[:8]).json == shown
    assert call(url, "executions", "show", "0000").code == 3
    cancelled = call(url, "-o", "json", "executions", "cancel", RUN, "--reason", "enough").json
    assert (cancelled[0]["status"], cancelled[0]["changed"]) == ("cancelled", True)
    assert call(url, "-o", "json", "executions", "cancel", RUN).json[0]["changed"] is False


def test_dead_letters_are_listed_shown_replayed_and_resolved(url: str) -> None:
    [row] = call(url, "-o", "json", "dead-letters", "list", "--unresolved").json
    assert row["id"] == LETTER
    assert "ValueError: no" in call(url, "dead-letters", "show", LETTER).out
    replayed = call(url, "-o", "json", "dead-letters", "replay", LETTER).json
    assert (replayed["number"], bool(replayed["execution_id"])) == (1, True)
    assert call(url, "dead-letters", "replay", LETTER).code != 0
    assert call(url, "-o", "json", "dead-letters", "resolve", LETTER, "--reason", "done").json[0]["changed"] is True
    assert call(url, "-o", "json", "dead-letters", "show", LETTER).json["resolved"] is True


def test_schedule_is_printed(url: str) -> None:
    answer = call(url, "-o", "json", "schedule", "--hours", "24").json
    assert [job["job"] for job in answer["jobs"]] == ["nightly"]


def test_export_is_applied_unchanged(url: str, tmp_path: Path) -> None:
    assert call(url, "jobs", "pause", "nightly").code == 0
    exported = tmp_path / "exported.yaml"
    assert call(url, "-o", "json", "jobs", "export", "--out", str(exported)).json["jobs"] == 1
    assert "x-paused:\n- nightly\n" in exported.read_text()
    assert call(url, "jobs", "diff", "-f", str(exported)).code == 0


def test_errors_read_the_same_as_without_server(url: str) -> None:
    missing = call(url, "jobs", "show", "nightli", "-o", "json")
    assert missing.failure == (3, "job-not-found")
    assert "'nightly'" in missing.error["message"]
    wrong = call(url, "jobs", "trigger", "nightly", "--input", '{"a": "${env:}"}')
    assert wrong.code == 2
    assert "malformed reference `${env:}`" in wrong.err
    nats_only = call(url, "status")
    assert (nats_only.code, "omit --server" in nats_only.err) == (2, True)
    nowhere = call("http://127.0.0.1:1", "jobs", "list")
    assert nowhere.code == 4
    assert "http://127.0.0.1:1" in nowhere.err


def test_token_identifies_the_actor(tmp_path: Path) -> None:
    (tmp_path / "guarded").touch()
    with served(tmp_path, prepare) as url:
        token = (tmp_path / "token").read_text()
        assert call(url, "jobs", "list", TOCSIN_TOKEN=token).code == 0
        refused = call(url, "jobs", "pause", "nightly", TOCSIN_TOKEN=token)
        assert (refused.code, token in refused.err) == (1, False)
        assert "the roles of this token are: scheduler-viewer" in refused.err
        file = tmp_path / "jobs.yaml"
        file.write_text(FILE)
        apply = ("jobs", "apply", "-f", str(file))
        assert "1 to create, 1 to update" in call(url, *apply, "--dry-run", TOCSIN_TOKEN=token).out
        refused = call(url, *apply, TOCSIN_TOKEN=token)
        assert (refused.code, refused.out) == (1, "")
        assert json.loads(call(url, "-o", "json", "jobs", "list", "--token", token).out)
        assert "a bearer token is required" in call(url, "jobs", "list").err


def test_occurrence_is_explained(url: str) -> None:
    [answer] = call(url, "-o", "json", "why", "nightly", "2025-01-01T03:00:00Z").json
    assert (answer["job"], answer["verdict"], answer["backfills"]) == ("nightly", "before-the-job", [])
    assert [fact["fact"]["type"] for fact in answer["facts"]] == ["defined"]
    assert "The job did not exist yet" in call(url, "why", "nightly", "2025-01-01T03:00").out
    assert call(url, "why", "nobody").code == 3
    assert len(call(url, "-o", "json", "explain", "nightly").json["next"]) == 5


def test_installation_is_examined(url: str) -> None:
    result = call(url, "doctor")
    assert "1 executions wait  [unclaimed]" in result.out
    assert "→ run more workers" in result.out
    [finding] = call(url, "-o", "json", "doctor").json
    assert (finding["code"], finding["level"], finding["details"]) == ("unclaimed", "warn", {"executions": ["a b"]})
    refused = call(url, "doctor", "--monitor", "http://nats-1:8222", "-o", "json")
    assert (refused.code, refused.error["error_code"]) == (2, "monitor-not-supported")


def test_tokens_are_created_listed_and_revoked(url: str) -> None:
    create = ("tokens", "create", "mailer", "--role", "scheduler-worker", "--queue", "mail", "--expires", "90d")
    root = call(url, "-o", "json", "tokens", "create", "root", "--role", "scheduler-admin").json["token"]
    created = call(url, "-o", "json", *create, TOCSIN_TOKEN=root).json
    assert (created["queues"], created["functions"], created["created_by"]["identity"]) == (["mail"], ["*"], "root")
    listed = call(url, "-o", "json", "tokens", "list", TOCSIN_TOKEN=root).json
    assert [token["identity"] for token in listed] == ["root", "mailer"]
    assert call(url, "tokens", "revoke", created["id"], TOCSIN_TOKEN=root).out == f"revoked {created['id']}\n"
    missing = call(url, "tokens", "revoke", "../jobs", "-o", "json", TOCSIN_TOKEN=root)
    assert (missing.code, missing.error["error_code"]) == (3, "token-not-found")


def test_apply_warns_of_names_that_the_server_lacks(url: str, tmp_path: Path) -> None:
    (file := tmp_path / "jobs.yaml").write_text(NAMES)
    for arguments in ((), ("--dry-run",)):
        warnings = call(url, "jobs", "apply", "-f", str(file), *arguments).err
        assert "no channel `pagr`" in warnings
        assert "do not open `orders.new`" in warnings
        assert "`nowhere`, which is not registered" in warnings
