"""The services of compose/compose.yaml as workloads, so that pods can run them.

Left out are those that this machine has no program for: monitoring, the collector of traces, and the executor in Node.js.
"""

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import yaml

from tests.deployment.cluster import Cluster
from tests.deployment.manifests import COMPOSE, WORKLOADS, Object, container, of_kind

IMAGES: Final = ("tocsin", "nats", "postgres", "redis")
NATS: Final = "nats"
OWN: Final = "tocsin:local"
JOB_NAME: Final = "provider-health-check"
_PROBE_S: Final = 5


def services() -> dict[str, Any]:
    """Return the services that `docker compose up` starts and this machine can run."""
    everything: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text("utf-8"))["services"]
    return {
        name: service
        for name, service in everything.items()
        if service["image"].partition(":")[0] in IMAGES and "profiles" not in service
    }


def workloads() -> list[Object]:
    """Return the services and their files as objects of a manifest."""
    passwords: dict[str, str] = {}
    config_maps: dict[str, Object] = {}
    made = [_workload(name, service, passwords, config_maps) for name, service in services().items()]
    return [*config_maps.values(), *made]


def next_version(documents: Sequence[Object]) -> list[Object]:
    """Return the workloads with another image of Tocsin, as `docker compose up` finds them after a new build."""
    changed = deepcopy([*documents])
    for workload in of_kind(changed, *WORKLOADS):
        if container(workload)["image"] == OWN:
            container(workload)["image"] = "tocsin:next"
            if workload["kind"] == "Job":
                workload["metadata"]["name"] += "-next"  # it runs again
    return changed


def prepare(cluster: Cluster) -> None:
    """Let the names of services lead to their first containers, and lay the certificates as compose has them."""
    for name in services():
        cluster.objects.hosts[name] = cluster.pods[f"{name}-0"].address
    files = cluster.objects.secrets["certificates"]
    names = {"ca.pem": "ca.crt", "server.pem": "tls.crt", "server.key": "tls.key"}
    cluster.objects.secrets["certificates"] = {name: files[of] for name, of in names.items()}
    [api, *_] = cluster.of("api")
    cluster.objects.secrets["tocsin"] = {"admin-token": api.environment()["TOCSIN_AUTH__ADMIN_TOKEN"]}


def _workload(name: str, service: Object, passwords: dict[str, str], config_maps: dict[str, Object]) -> Object:
    image = service["image"].partition(":")[0]
    labels = {"app.kubernetes.io/component": NATS if image == NATS else name}
    mounts, volumes, claims = _mounts(service, config_maps)
    environment = {name: _substituted(str(value), passwords) for name, value in service["environment"].items()}
    environment.pop("OTEL_EXPORTER_OTLP_ENDPOINT", None)
    if image == "postgres":
        environment["PGDATA"] = "/var/lib/postgresql/data"  # of the image
    pod: Object = {
        "image": service["image"],
        "command" if image == "redis" else "args": service.get("command", []),
        "env": [{"name": variable, "value": value} for variable, value in environment.items()],
        "volumeMounts": mounts,
        **_probe(service.get("healthcheck", {})),
    }
    grace = int(service.get("stop_grace_period", "10s").removesuffix("s"))
    spec: Object = {"containers": [pod], "volumes": volumes, "terminationGracePeriodSeconds": grace}
    is_job = service["restart"] == "on-failure"
    if is_job:
        spec["restartPolicy"] = "OnFailure"
    template = {"metadata": {"labels": labels, "annotations": _scrape(name)}, "spec": spec}
    return {
        "kind": "Job" if is_job else "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": service.get("deploy", {}).get("replicas", 1),
            "template": template,
            "volumeClaimTemplates": [{"metadata": {"name": claim}} for claim in claims],
        },
    }


def _substituted(text: str, passwords: dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+):\?\}", lambda found: passwords.setdefault(found[1], f"p{secrets.token_hex(20)}"), text)


def _mounts(service: Object, config_maps: dict[str, Object]) -> tuple[list[Object], list[Object], list[str]]:
    """Return the mounts of a service, its volumes, and the names of those that outlive it."""
    mounts: list[Object] = [{"name": path, "mountPath": path} for path in service.get("tmpfs", ())]
    volumes: list[Object] = [{"name": path, "emptyDir": {}} for path in service.get("tmpfs", ())]
    claims = list[str]()
    for written in service.get("volumes", ()):
        source, target = written.split(":")[:2]
        if not source.startswith("."):
            claims.append(source)
            mounts.append({"name": source, "mountPath": target})
            continue
        path = COMPOSE / source
        is_file = bool(path.suffix)
        folder = path.parent if is_file else path
        mounts.append({"name": source, "mountPath": target, **({"subPath": path.name} if is_file else {})})
        if folder.name == "certificates":
            volumes.append({"name": source, "secret": {"secretName": "certificates"}})
        else:
            config_maps[source] = {
                "kind": "ConfigMap",
                "metadata": {"name": source},
                "data": dict(_texts([path] if is_file else sorted(folder.iterdir()))),
            }
            volumes.append({"name": source, "configMap": {"name": source}})
    return mounts, volumes, claims


def _texts(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """Yield the names and the texts of files. A NATS server gets an address beside each port, because all share a machine."""
    for path in paths:
        if path.is_file():
            text = path.read_text("utf-8")
            if path.name == "nats.conf":
                text = re.sub(r"\bport: (\d+)", r"listen: 0.0.0.0:\1", text)
                text = re.sub(r"\bhttp: (\d+)", r"http: 0.0.0.0:\1", text)
            yield path.name, text


def _probe(healthcheck: Mapping[str, Any]) -> Object:
    test = healthcheck.get("test", ())
    if not test or test[0] != "CMD":
        return {}
    if found := re.search(r":(\d+)(/\S+)", test[-1]):
        get = {"port": int(found[1]), "path": found[2]}
        return {"readinessProbe": {"httpGet": get, "timeoutSeconds": _PROBE_S}}
    command = [*test[1:], *(["-h", "127.0.0.1"] if test[1] == "pg_isready" else [])]
    return {"readinessProbe": {"exec": {"command": command}}}


def _scrape(name: str) -> dict[str, str]:
    """Return the annotations of a service that Prometheus scrapes by `prometheus.yml`."""
    configuration = yaml.safe_load((COMPOSE / "prometheus/prometheus.yml").read_text("utf-8"))
    for job in configuration["scrape_configs"]:
        for discovery in job.get("dns_sd_configs", ()):
            if name in discovery["names"]:
                return {
                    "prometheus.io/scrape": "true",
                    "prometheus.io/port": str(discovery["port"]),
                    "prometheus.io/path": "/metrics",
                }
    return {}
