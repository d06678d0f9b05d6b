"""The production picture in compose/: everything in it that can be checked without running containers is."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import trustme
import yaml
from typer.testing import CliRunner

from tests.security.server import server
from tocsin.adapters.nats.admin.accounts import password_variable, server_accounts
from tocsin.adapters.nats.server.process import installed_binary
from tocsin.bootstrap import STAGE_NAMES
from tocsin.bootstrap.nats_roles import permissions
from tocsin.cli import app
from tocsin.cli.processes.commands import select_stages
from tocsin.settings import load

ROOT = Path(__file__).parents[1]
COMPOSE = ROOT / "compose"
HIP_62 = {
    "hanzo_scheduler_executions_total",
    "hanzo_scheduler_retries_total",
    "hanzo_scheduler_dead_letters_total",
    "hanzo_scheduler_execution_duration_seconds_bucket",
    "hanzo_scheduler_jobs_registered",
    "hanzo_scheduler_next_fire_seconds",
    "hanzo_scheduler_lock_held",
    "hanzo_scheduler_dag_steps_total",
    "hanzo_scheduler_leader_active",
}
"""Its metrics endpoint, and the endpoint that its alerts use."""


def read(path: str) -> Any:  # noqa: ANN401 - YAML
    return yaml.safe_load((COMPOSE / path).read_text())


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = read("compose.yaml")["services"]
    return found


def ours(services: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    return ((name, service) for name, service in services.items() if service["image"] == "tocsin:local")


def is_a_command(args: list[str]) -> None:
    """The real program knows it, with these options and arguments."""
    result = CliRunner().invoke(app, [*args, "--help"])
    assert result.exit_code == 0, result.output
    if args[0] == "run":
        every = "--all" in args
        assert select_stages([] if every else args[1:], STAGE_NAMES, every=every)


def test_every_command_exists(services: dict[str, Any]) -> None:
    for _, service in ours(services):
        is_a_command(service["command"])


def test_every_command_that_the_readme_shows_exists() -> None:
    shown = re.findall(r"run --rm tocsin ([a-z ]+)", (COMPOSE / "README.md").read_text())
    assert len(shown) >= 3
    for command in shown:
        is_a_command(command.split())


def test_every_stage_is_a_service(services: dict[str, Any]) -> None:
    run = [stage for _, service in ours(services) if service["command"][0] == "run" for stage in service["command"][1:]]
    # The notary needs a key, which every installation makes for itself, and the notifier its channels.
    assert sorted(stage.replace("-", "_") for stage in run) == sorted({*STAGE_NAMES} - {"notary", "notifier"})


def test_fused_setup_replaces_every_stage_service(services: dict[str, Any]) -> None:
    fused = read("fused.yaml")["services"]
    stages = fused.pop("stages")
    assert {name for name, service in ours(services) if service["command"][0] == "run"} == set(fused)
    assert all(service == {"profiles": ["separate"]} for service in fused.values())
    is_a_command(stages["command"])
    user = stages["environment"]["TOCSIN_NATS__USER"]
    role = permissions(load(COMPOSE / "tocsin.yaml"))[user]
    assert stages["environment"]["TOCSIN_NATS__INBOX_PREFIX"] == role.inbox_prefix
    assert stages["environment"]["TOCSIN_NATS__PASSWORD"] == f"${{{password_variable('TOCSIN', user)}:?}}"
    assert "DATABASE_URL" in services[stages["extends"]["service"]]["environment"]


def test_every_service_uses_its_own_user(services: dict[str, Any]) -> None:
    roles = permissions(load(COMPOSE / "tocsin.yaml"))
    for name, service in ours(services):
        environment = service["environment"]
        user = environment["TOCSIN_NATS__USER"]
        assert user in roles, name
        assert environment["TOCSIN_NATS__INBOX_PREFIX"] == roles[user].inbox_prefix
        assert environment["TOCSIN_NATS__PASSWORD"] == f"${{{password_variable('TOCSIN', user)}:?}}"
        if service["command"][0] == "run":
            assert service["command"][1:] == [user] == [name]


def test_executor_of_hip_62_has_its_user(services: dict[str, Any]) -> None:
    executor = services["mq-executor"]
    role = permissions(load(COMPOSE / "tocsin.yaml"))[executor["environment"]["NATS_USER"]]
    assert executor["environment"]["NATS_INBOX_PREFIX"] == role.inbox_prefix
    assert (ROOT / executor["command"][1].removeprefix("/")).exists()


def test_only_history_services_know_its_password(services: dict[str, Any]) -> None:
    knowing = {name for name, service in ours(services) if "DATABASE_URL" in service["environment"]}
    assert knowing == {"recorder", "archiver", "api", "jobs", "tocsin"}


def test_the_accounts_are_those_that_the_stages_need() -> None:
    made = server_accounts("TOCSIN", permissions(load(COMPOSE / "tocsin.yaml")))
    assert accounts() == made, "tocsin --config compose/tocsin.yaml permissions > compose/nats/accounts.conf"


def test_every_variable_has_an_example(services: dict[str, Any]) -> None:
    text = (COMPOSE / "compose.yaml").read_text()
    used = set(re.findall(r"\$\{([A-Z_0-9]+):\?\}", text))
    example = dict(
        line.split("=", 1) for line in (COMPOSE / ".env.example").read_text().splitlines() if not line.startswith("#")
    )
    assert set(example) == used
    assert {password_variable("TOCSIN", role) for role in permissions(load(COMPOSE / "tocsin.yaml"))} <= used
    for node in ("nats-1", "nats-2", "nats-3"):
        given = services[node]["environment"]
        assert set(given) - {"NATS_SERVER_NAME"} == set(re.findall(r"\$(TOCSIN_\w+)", accounts()))


def accounts() -> str:
    return (COMPOSE / "nats/accounts.conf").read_text()


def test_services_refer_only_to_existing_files(services: dict[str, Any]) -> None:
    whole = read("compose.yaml")
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        assert set(service["networks"]) <= set(whole["networks"]), name
        for condition in service.get("depends_on", {}).items():
            if condition[1]["condition"] == "service_healthy":
                assert "healthcheck" in services[condition[0]], condition
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            if source.startswith((".", "/")):
                assert (COMPOSE / source).exists() or "certificates" in source, f"{name}: {source}"
            else:
                assert source in whole["volumes"], f"{name}: {source}"


def test_prometheus_scrapes_the_service_with_metrics(services: dict[str, Any]) -> None:
    [scraped] = [one for one in read("prometheus/prometheus.yml")["scrape_configs"] if one["job_name"] == "tocsin"]
    assert scraped["dns_sd_configs"][0]["names"] == ["api"]
    assert "api" in services


OPTIONAL = {"notary", "notifier"}
"""Stages that an operator may add as services of these names (docs/how-to/compose.md)."""


def test_prometheus_scrapes_the_stages_and_workers(services: dict[str, Any]) -> None:
    [scraped] = [
        one for one in read("prometheus/prometheus.yml")["scrape_configs"] if one["job_name"] == "tocsin-processes"
    ]
    [discovery] = scraped["dns_sd_configs"]
    commands = {name: service.get("command") or ["run"] for name, service in ours(services)}
    serving = {name for name, command in commands.items() if command[0] in {"run", "worker"}}
    assert set(discovery["names"]) == serving | OPTIONAL | {"stages"}
    assert discovery["port"] == read("tocsin.yaml")["metrics"]["process_port"]


def test_the_figures_are_those_of_hip_62() -> None:
    rules = [rule for group in read("prometheus/alerts.yml")["groups"] for rule in group["rules"]]
    assert {rule["alert"] for rule in rules if not rule["alert"].startswith("Tocsin")} == {
        "ScheduledJobFailing",
        "DeadLettersAccumulating",
        "SchedulerLeaderLost",
    }
    dashboards = [json.loads(path.read_text()) for path in (COMPOSE / "grafana/dashboards").glob("*.json")]
    assert {dashboard["uid"] for dashboard in dashboards} == {"tocsin", "tocsin-job", "tocsin-stage"}
    targets = [t for dashboard in dashboards for panel in dashboard["panels"] for t in panel.get("targets", ())]
    shown = [target["expr"] for target in targets]
    for expression in [*shown, *(rule["expr"] for rule in rules)]:
        assert set(re.findall(r"hanzo_\w+", expression)) <= HIP_62
    assert {figure for expression in shown for figure in re.findall(r"hanzo_\w+", expression)} == HIP_62


def test_the_collector_names_only_parts_that_it_has() -> None:
    collector = read("otel/collector.yaml")
    for pipeline in collector["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            assert set(names) <= set(collector[kind])


@pytest.fixture
def configured(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """The servers' configuration with certificates and a store of this test's."""
    made = trustme.CA()
    certificate = made.issue_cert("nats-1", "127.0.0.1")
    made.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(tmp_path / "server.key"))
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "server.pem"))
    text = (COMPOSE / "nats/nats.conf").read_text()
    text = text.replace("/certificates/", f"{tmp_path}/").replace("store_dir: /data", f"store_dir: {tmp_path}/data")
    (tmp_path / "nats.conf").write_text(text)
    (tmp_path / "accounts.conf").write_text(accounts())
    passwords = dict.fromkeys(re.findall(r"\$(TOCSIN_\w+)", accounts()), "pass-word")
    return tmp_path / "nats.conf", {**os.environ, **passwords, "NATS_SERVER_NAME": "nats-1"}


def test_the_server_accepts_its_configuration(configured: tuple[Path, dict[str, str]]) -> None:
    path, environment = configured
    result = subprocess.run(
        [installed_binary(), "-t", "-c", path], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_a_server_runs_with_the_accounts(tmp_path: Path) -> None:
    passwords = dict.fromkeys(re.findall(r"\$(TOCSIN_\w+)", accounts()), "pass-word")
    with server(tmp_path / "s", accounts(), environment=passwords):
        pass


def test_the_certificates_are_those_that_the_servers_need(tmp_path: Path) -> None:
    script = tmp_path / "certificates.sh"
    script.write_text((COMPOSE / "certificates.sh").read_text())
    subprocess.run(["sh", script], check=True, capture_output=True)  # noqa: S607 - a shell is everywhere
    folder = tmp_path / "certificates"
    tls = f'tls {{ cert_file: "{folder}/server.pem", key_file: "{folder}/server.key", ca_file: "{folder}/ca.pem" }}'
    with server(tmp_path / "s", tls) as running:
        program = [
            *(sys.executable, "-m", "tocsin", "--nats", f"tls://localhost:{running.port}", "status"),
        ]
        environment = {**os.environ, "TOCSIN_NATS__TLS__CA": str(folder / "ca.pem"), "TOCSIN_DATA_DIR": str(tmp_path)}
        result = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        assert "`tocsin init`" in result.stdout


class Answer(BaseHTTPRequestHandler):
    """Answers the path `/200` with 200, and others with 503."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/200" else 503)
        self.end_headers()


def test_container_is_healthy_while_its_probe_answers() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as listener:
        Thread(target=listener.serve_forever).start()
        port = str(listener.server_port)
        codes = [
            subprocess.run([COMPOSE / "ready", *arguments], check=False, capture_output=True).returncode
            for arguments in ((port, "/200"), (port, "/503"), ("9", "/200"))
        ]
        listener.shutdown()
    assert codes == [0, 1, 1]


def test_every_service_has_its_probe(services: dict[str, Any]) -> None:
    settings = load(COMPOSE / "tocsin.yaml")
    probes = {
        "run": [str(settings.metrics.process_port), "/readyz"],
        "worker": [str(settings.metrics.process_port), "/readyz"],
        "serve": [str(settings.server.port), "/v1/health"],
    }
    for name, service in ours(services):
        command = service["command"][0]
        expected = {"disable": True} if command not in probes else {"test": ["CMD", "ready", *probes[command]]}
        assert expected.items() <= service["healthcheck"].items(), name


def test_api_requires_a_token(services: dict[str, Any]) -> None:
    knowing = {name for name, service in ours(services) if "TOCSIN_AUTH__ADMIN_TOKEN" in service["environment"]}
    assert knowing == {"api"}


def test_a_container_is_healthy_while_it_is_connected(nats_url: str) -> None:
    port = nats_url.rpartition(":")[2]
    check = [COMPOSE / "connected"]
    environment = {**os.environ, "NATS_PORT": port}
    assert subprocess.run(check, env={**environment, "NATS_PORT": "9"}, check=False).returncode == 1
    import socket  # noqa: PLC0415

    with socket.create_connection(("127.0.0.1", int(port))):
        assert subprocess.run(check, env=environment, check=False).returncode == 0


def test_containers_have_no_more_rights_than_they_need(services: dict[str, Any]) -> None:
    for name, service in [*ours(services), ("mq-executor", services["mq-executor"])]:
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service.get("privileged"), name


def test_databases_need_a_password(services: dict[str, Any]) -> None:
    assert "requirepass" in services["redis"]["command"][-1]
    assert "${REDIS_PASSWORD:?}" in services["redis"]["environment"]["REDISCLI_AUTH"]
    assert ":${REDIS_PASSWORD:?}@" in services["api"]["environment"]["TOCSIN_REDIS__URL"]
    assert "POSTGRES_PASSWORD" in services["postgres"]["environment"]
    assert not {"ports"} & {*services["redis"], *services["postgres"]}


def test_image_copies_only_existing_files() -> None:
    lines = (COMPOSE / "Dockerfile").read_text().splitlines()
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), source
                assert f"!{source.removeprefix('./')}" in ignored, source
    assert "USER tocsin" in lines
    assert any(line.startswith("HEALTHCHECK") for line in lines)
