"""`tocsin support-bundle` writes what it can have, and names the rest."""

import json
import socket
import subprocess
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from tocsin import __version__
from tocsin.cli.installation.support_bundle import is_ours

from .conftest import World

PASSWORD = "hunter2"  # noqa: S105 - no password of ours

OURS = b"# TYPE tocsin_workers gauge\ntocsin_workers 1\n"
PAGES = {
    "/metrics": OURS,
    "/prometheus": b'# HELP go_info About tocsin_\ngo_info{version="go1.26"} 1\nprometheus_build_info{job="tocsin_"} 1\n',
    "/login": b"<!doctype html><title>tocsin_</title>",
}
"""The pages of a process with metrics, and those of other programs."""


class Metrics(BaseHTTPRequestHandler):
    """A process with metrics."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path in PAGES else 404)
        self.end_headers()
        self.wfile.write(PAGES.get(self.path, b""))

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


def content(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        files = {name: archive.extractfile(name) for name in archive.getnames()}
        return {name.removeprefix("tocsin-support/"): file.read() for name, file in files.items() if file is not None}


def test_bundle_has_settings_logs_and_metrics(world: World, tmp_path: Path) -> None:
    (world.folder / "tocsin.yaml").write_text(f"nats: {{ user: me, password: {PASSWORD} }}")
    log, out = tmp_path / "stages.log", tmp_path / "b.tar.gz"
    log.write_text("a line\n")
    server = HTTPServer(("127.0.0.1", 0), Metrics)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        result = world.call(
            "support-bundle",
            *("--out", str(out), "--log", str(log), "--log", str(tmp_path / "absent.log")),
            *("--metrics", f"{url}/metrics", "--metrics", f"{url.replace('//', f'//me:{PASSWORD}@')}/other"),
            *("--metrics", f"{url}/prometheus", "--metrics", f"{url}/login"),
        )
    finally:
        server.shutdown()
        server.server_close()
    files = content(out)
    assert files["logs/1-stages.log"] == b"a line\n"
    assert files["metrics/1.txt"] == OURS
    assert json.loads(files["settings.json"])["nats.user"] == {"value": "me", "origin": "tocsin.yaml"}
    assert PASSWORD not in str(files)
    missing = {
        name: part["missing"] for name, part in json.loads(files["bundle.json"])["files"].items() if "missing" in part
    }
    assert missing["logs/2-absent.log"].startswith("FileNotFoundError")
    assert "404" in missing["metrics/2.txt"]
    for part in ("metrics/3.txt", "metrics/4.txt"):
        assert "another program answers there" in missing[part]
        assert part not in files
    assert "Read it before you send it." in result.out
    again = world.call("support-bundle", "--out", str(out))
    assert (again.code, "exists already" in again.err) == (2, True)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])  # noqa: S104 - nothing listens there
def test_metrics_of_this_machine_need_no_option(world: World, tmp_path: Path, host: str) -> None:
    server = HTTPServer(("127.0.0.1", 0), Metrics)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with socket.socket() as held:  # bound and not listening, so that no other process answers
            held.bind(("127.0.0.1", 0))
            ports = f"port: {server.server_port}, process_port: {held.getsockname()[1]}"
            (world.folder / "tocsin.yaml").write_text(f"server: {{ host: {host} }}\nmetrics: {{ {ports} }}")
            world.call("support-bundle", "--out", str(out := tmp_path / "b.tar.gz"))
    finally:
        server.shutdown()
        server.server_close()
    files = content(out)
    assert files["metrics/1.txt"] == OURS
    # The port of the stages does not answer, which is said.
    assert json.loads(files["bundle.json"])["files"]["metrics/2.txt"]["missing"].startswith("ConnectError")


def test_bundle_is_written_without_nats(world: World, tmp_path: Path) -> None:
    world.reachable = False
    (world.folder / "tocsin.yaml").write_text("metrics: { enabled: false }")
    out = tmp_path / "b.tar.gz"
    parts = world.call("support-bundle", "--out", str(out), "-o", "json").json["parts"]
    assert {part["name"]: part["error"] is None for part in parts} == {"settings.json": True, "installation": False}
    assert "settings.json" in content(out)


def test_page_of_an_idle_process_is_ours() -> None:
    """The counters of a process have no sample before their first value."""
    program = (
        "import sys; from prometheus_client import generate_latest\n"
        "from tocsin.adapters.otel.process_metrics import process_metrics\n"
        "sys.stdout.buffer.write(generate_latest(process_metrics()))"
    )
    page = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    assert is_ours(page)
    assert f'tocsin_build_info{{version="{__version__}"}} 1.0'.encode() in page
    assert not is_ours(page.replace(b"\ntocsin_", b"\nother_"))
