"""The rendered manifests: valid, current, and with no more rights than they need."""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import yaml
from cryptography import x509
from typer.testing import CliRunner

from tests.deployment.manifests import (
    CHART,
    COMPOSE,
    HELM,
    RENDERED,
    WORKLOADS,
    Object,
    component,
    container,
    dockerfile_environment,
    objects,
    of_kind,
    secret_keys,
    selects,
    template,
)
from tests.deployment.schema import problems
from tocsin.adapters.nats.admin.accounts import server_accounts
from tocsin.bootstrap import STAGE_NAMES
from tocsin.bootstrap.nats_roles import permissions
from tocsin.cli import app
from tocsin.cli.processes.commands import select_stages
from tocsin.settings import Settings, load

FILES = (*RENDERED, "containers.yaml")
OUR_IMAGES = {"tocsin:local", "tocsin-worker:local"}
VALUES = (CHART / "values.yaml").read_text("utf-8")
CONTAINER_WORKER = "container-worker"
EXECUTOR = "mq-executor"
PROBED: Final = {8222, 8080}
"""Ports that only the kubelet uses, which needs no rule."""
UNDISTURBED = {"init", "jobs", "postgresql"}
"""Components of which there is one pod, whose end no budget prevents."""


def workloads() -> list[Any]:
    """Return the workloads of all files as parameters."""
    return [
        pytest.param(workload, id=f"{name}-{workload['metadata']['name']}")
        for name in FILES
        for workload in of_kind(objects(name), *WORKLOADS)
    ]


every_workload = pytest.mark.parametrize("workload", workloads())
every_rendered = pytest.mark.parametrize("name", RENDERED)
every_file = pytest.mark.parametrize("name", FILES)


def settings_of(name: str, folder: Path, config_map: str = "tocsin") -> Settings:
    """Return the settings in a manifest."""
    [text] = [
        document["data"]["tocsin.yaml"]
        for document in of_kind(objects(name), "ConfigMap")
        if document["metadata"]["name"] == config_map
    ]
    (folder / "tocsin.yaml").write_text(text, "utf-8")
    return load(folder / "tocsin.yaml")


def environment(workload: Object) -> dict[str, Any]:
    return {variable["name"]: variable for variable in container(workload).get("env", ())}


def test_manifests_are_those_of_the_chart(capsys: pytest.CaptureFixture[str]) -> None:
    assert HELM.main(["--check"]) == 0, capsys.readouterr().out


def test_changed_chart_is_noticed_without_helm() -> None:
    for path in HELM.manifests():
        text = path.read_text("utf-8")
        assert text.startswith(HELM.header(path))
        assert HELM.digest(path) in text


def test_accounts_are_those_of_the_settings(tmp_path: Path) -> None:
    roles = permissions(settings_of("tocsin.yaml", tmp_path))
    made = server_accounts("TOCSIN", roles)
    assert (CHART / "files" / "accounts.conf").read_text("utf-8") == made, "run python compose/helm/render.py"
    [nats] = [d for d in of_kind(objects("tocsin.yaml"), "ConfigMap") if d["metadata"]["name"] == "tocsin-nats"]
    assert nats["data"]["accounts.conf"].strip() == made.strip()


@every_file
def test_objects_are_valid(name: str) -> None:
    assert [problem for document in objects(name) for problem in problems(document)] == []


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"spec": {"replica": 1}}, "spec.replica"),
        ({"spec": {"selector": {"matchLabels": {"a": 1}}}}, "spec.selector.matchLabels.a"),
        ({"spec": {"replicas": "2"}}, "spec.replicas"),
        ({"spec": {"replicas": 2}}, "spec"),
    ],
)
def test_invalid_object_names_its_field(wrong: Object, field: str) -> None:
    found = problems({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, **wrong})
    assert any(problem.startswith(f"Deployment.{field}:") for problem in found)


@every_rendered
def test_manifest_names_no_namespace_and_no_secret(name: str) -> None:
    for document in objects(name):
        assert "namespace" not in document["metadata"]
        assert document["kind"] != "Secret"
        assert len(document["metadata"]["name"]) <= 63


@every_file
def test_references_lead_to_objects(name: str) -> None:
    documents = objects(name)
    config_maps = {document["metadata"]["name"] for document in of_kind(documents, "ConfigMap")}
    for workload in of_kind(documents, *WORKLOADS):
        pod, of_pod = template(workload)["spec"], container(workload)
        volumes = {volume["name"]: volume for volume in pod.get("volumes", ())}
        claims = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", ())}
        assert {mount["name"] for mount in of_pod["volumeMounts"]} == volumes.keys() | claims
        used = {volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume}
        assert used <= config_maps
        if workload["kind"] != "Job":
            assert selects(workload["spec"]["selector"], template(workload)["metadata"]["labels"])


@every_workload
def test_probes_and_scrapes_use_declared_ports(workload: Object) -> None:
    of_pod = container(workload)
    ports = {port["name"]: port["containerPort"] for port in of_pod.get("ports", ())}
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        if "httpGet" in of_pod.get(kind, {}):
            assert of_pod[kind]["httpGet"]["port"] in {*ports, *ports.values()}
    annotations = template(workload)["metadata"].get("annotations", {})
    assert (annotations.get("prometheus.io/port") == "9090") is ("metrics" in ports)
    if workload["kind"] != "Job":
        assert "readinessProbe" in of_pod


def test_every_command_exists() -> None:
    for name in FILES:
        for workload in of_kind(objects(name), *WORKLOADS):
            if container(workload)["image"] in OUR_IMAGES:
                args = container(workload)["args"]
                result = CliRunner().invoke(app, [*args, "--help"])
                assert result.exit_code == 0, result.output
                if args[0] == "run":
                    every = "--all" in args
                    assert select_stages([] if every else args[1:], STAGE_NAMES, every=every)


def test_every_stage_has_a_deployment(tmp_path: Path) -> None:
    run = [
        container(workload)["args"][1]
        for workload in of_kind(objects("stages.yaml"), "Deployment")
        if container(workload).get("args", [""])[0] == "run"
    ]
    installed = [
        role for role in permissions(settings_of("stages.yaml", tmp_path)) if role.replace("-", "_") in STAGE_NAMES
    ]
    assert sorted(run) == sorted(installed)


@every_file
def test_every_process_is_a_known_nats_user(name: str, tmp_path: Path) -> None:
    roles = permissions(settings_of("tocsin.yaml", tmp_path))
    for workload in of_kind(objects(name), *WORKLOADS):
        given = environment(workload)
        if container(workload)["image"] in OUR_IMAGES:
            user = given["TOCSIN_NATS__USER"]["value"]
            assert given["TOCSIN_NATS__INBOX_PREFIX"]["value"] == roles[user].inbox_prefix
            key = given["TOCSIN_NATS__PASSWORD"]["valueFrom"]["secretKeyRef"]["key"]
            assert key == f"{user}-password"


@every_rendered
def test_executor_in_another_language_is_a_known_user(name: str, tmp_path: Path) -> None:
    [executor] = [each for each in of_kind(objects(name), "Deployment") if component(each) == EXECUTOR]
    assert container(executor)["image"].startswith("node:")
    given = environment(executor)
    user = given["NATS_USER"]["value"]
    assert given["NATS_INBOX_PREFIX"]["value"] == permissions(settings_of(name, tmp_path))[user].inbox_prefix
    assert given["NATS_PASSWORD"]["valueFrom"]["secretKeyRef"]["key"] == f"{user}-password"
    assert given["NATS_URL"]["value"] == settings_of(name, tmp_path).nats.url
    [program] = [
        document["data"] for document in of_kind(objects(name), "ConfigMap") if EXECUTOR in document["metadata"]["name"]
    ]
    assert (
        program["mq_executor.mjs"].strip() == (COMPOSE.parent / "examples/mq_executor.mjs").read_text("utf-8").strip()
    )


def test_nats_servers_know_the_password_of_every_user() -> None:
    [nats] = [w for w in of_kind(objects("tocsin.yaml"), "StatefulSet") if component(w) == "nats"]
    needed = set(re.findall(r"\$(TOCSIN_\w+)", (CHART / "files" / "accounts.conf").read_text("utf-8")))
    assert environment(nats).keys() == needed | {"POD_NAME"}


def test_how_to_makes_every_secret() -> None:
    text = (COMPOSE.parent / "docs/how-to/kubernetes.md").read_text("utf-8")
    [users] = re.findall(r"for user in ([^;]+);", text)
    made = {f"{user}-password" for user in users.replace("\\\n", " ").split()} | {"admin-token", "postgres-password"}
    assert made == {key for name, key in secret_keys(objects("tocsin.yaml")) if name == "tocsin"}


@every_workload
def test_pods_have_no_more_rights_than_they_need(workload: Object) -> None:
    spec = template(workload)["spec"]
    assert spec["automountServiceAccountToken"] is (component(workload) == CONTAINER_WORKER)
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    assert all(volume.keys() & {"configMap", "secret", "emptyDir"} for volume in spec.get("volumes", ()))
    assert container(workload)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container(workload)["resources"].keys() == {"requests", "limits"}


def test_only_nats_servers_get_the_private_key() -> None:
    for name in RENDERED:
        for workload in of_kind(objects(name), *WORKLOADS):
            for volume in template(workload)["spec"].get("volumes", ()):
                if "secret" in volume and component(workload) != "nats":
                    assert volume["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]


@every_rendered
def test_history_is_known_to_its_users_only(name: str) -> None:
    knowing = {component(w) for w in of_kind(objects(name), *WORKLOADS) if "DATABASE_URL" in environment(w)}
    assert knowing == {"tocsin.yaml": {"scheduler", "api"}, "stages.yaml": {"recorder", "archiver", "api"}}[name]


@every_rendered
def test_api_requires_a_token(name: str) -> None:
    [api] = [workload for workload in of_kind(objects(name), "Deployment") if component(workload) == "api"]
    reference = environment(api)["TOCSIN_AUTH__ADMIN_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert reference == {"name": "tocsin", "key": "admin-token"}


def test_worker_of_containers_has_rights_in_one_namespace(tmp_path: Path) -> None:
    documents = objects("containers.yaml")
    settings = settings_of("containers.yaml", tmp_path, "tocsin-container-worker")
    [role], [binding] = of_kind(documents, "Role"), of_kind(documents, "RoleBinding")
    [subject] = binding["subjects"]
    [worker] = of_kind(documents, "Deployment")
    pod = template(worker)["spec"]
    [namespace] = settings.builtin.container.namespaces
    [made] = [document["metadata"]["name"] for document in of_kind(documents, "Namespace")]
    assert {namespace, made} == {role["metadata"]["namespace"], binding["metadata"]["namespace"]}
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert subject["name"] == pod["serviceAccountName"]
    assert subject["name"] in [document["metadata"]["name"] for document in of_kind(documents, "ServiceAccount")]
    assert pod["terminationGracePeriodSeconds"] > settings.worker.shutdown_timeout
    assert settings.nats.url == settings_of("tocsin.yaml", tmp_path).nats.url
    assert not any(document["kind"].startswith("Cluster") for document in documents)


def rules(name: str, labels: Mapping[str, str]) -> dict[str, list[Object]]:
    """Return the rules of the policies that select a pod."""
    policies = [*of_kind(objects("tocsin.yaml" if name == "containers.yaml" else name), "NetworkPolicy")]
    if name == "containers.yaml":
        policies += of_kind(objects(name), "NetworkPolicy")
    mine = [policy["spec"] for policy in policies if selects(policy["spec"]["podSelector"], labels)]
    assert {direction for policy in mine for direction in policy["policyTypes"]} == {"Ingress", "Egress"}
    return {way: [rule for policy in mine for rule in policy.get(way, ())] for way in ("ingress", "egress")}


@every_file
def test_policies_open_only_the_ports_that_pods_use(name: str) -> None:
    for workload in of_kind(objects(name), *WORKLOADS):
        found = rules(name, template(workload)["metadata"]["labels"])
        ports = {way: {port["port"] for rule in of for port in rule["ports"]} for way, of in found.items()}
        listening = {port["containerPort"] for port in container(workload).get("ports", ())}
        assert ports["ingress"] == listening - PROBED, workload["metadata"]["name"]
        others = {5432} if "DATABASE_URL" in environment(workload) else set[int]()
        others |= {443, 6443} if component(workload) == CONTAINER_WORKER else set[int]()
        own = {"nats": {6222}, "postgresql": set[int]()}.get(component(workload), {4222})
        assert ports["egress"] == {53} | own | others, workload["metadata"]["name"]
        assert all(rule.get("from") or rule.get("to") for of in found.values() for rule in of)


@every_rendered
def test_budgets_and_spread_cover_every_lasting_pod(name: str) -> None:
    documents = objects(name)
    budgets = of_kind(documents, "PodDisruptionBudget")
    for workload in of_kind(documents, "Deployment", "StatefulSet"):
        if component(workload) in UNDISTURBED:
            continue
        labels = template(workload)["metadata"]["labels"]
        [budget] = [budget["spec"] for budget in budgets if selects(budget["spec"]["selector"], labels)]
        assert budget["maxUnavailable"] == 1
        spread = template(workload)["spec"]["topologySpreadConstraints"]
        assert {each["topologyKey"] for each in spread} == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}
        assert all(selects(each["labelSelector"], labels) for each in spread)


@every_workload
def test_processes_get_time_to_hand_back_their_work(workload: Object) -> None:
    if container(workload).get("args", [""])[0] in {"run", "worker"}:
        assert template(workload)["spec"]["terminationGracePeriodSeconds"] > Settings().worker.shutdown_timeout


def test_monitor_selects_every_pod_with_metrics() -> None:
    monitor, rule, dashboards = yaml.safe_load_all((COMPOSE / "kubernetes/monitoring.yaml").read_text("utf-8"))
    assert rule["spec"] == yaml.safe_load((COMPOSE / "prometheus/alerts.yml").read_text("utf-8"))
    names = {name.removeprefix("tocsin-") for name in dashboards["data"]}
    assert names == {path.name for path in (COMPOSE / "grafana/dashboards").iterdir()}
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True  # `job` is the name of a job of Tocsin
    [relabeling] = endpoint["metricRelabelings"]  # `max without (instance)` must combine the copies
    assert relabeling == {"action": "labeldrop", "regex": "pod|container|endpoint|namespace"}
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["tocsin"]}
    for name in FILES:
        for workload in of_kind(objects(name), *WORKLOADS):
            pod = template(workload)["metadata"]
            ports = {port["name"] for port in container(workload).get("ports", ())}
            is_annotated = "prometheus.io/scrape" in pod.get("annotations", {})
            assert is_annotated is (endpoint["port"] in ports)
            assert not is_annotated or selects(monitor["spec"]["selector"], pod["labels"])


def test_image_environment_is_that_of_the_dockerfile() -> None:
    assert dockerfile_environment()["TOCSIN_LOG_FORMAT"] == "json"


def test_image_starts_the_process_directly() -> None:
    """A shell before it would not forward signals."""
    lines = (COMPOSE / "Dockerfile").read_text("utf-8").splitlines()
    [entry] = [line for line in lines if line.startswith("ENTRYPOINT")]
    assert json.loads(entry.removeprefix("ENTRYPOINT ")) == ["tocsin"]


def chart(**values: Any) -> list[Object]:  # noqa: ANN401 - YAML
    """Return the objects of the chart with some values."""
    try:
        return list(HELM.render(values))
    except HELM.HelmNotFound as error:
        pytest.skip(str(error))


def named(documents: list[Object], kind: str) -> Iterator[str]:
    return (document["metadata"]["name"] for document in of_kind(documents, kind))


def test_defaults_make_their_secrets() -> None:
    documents = chart()
    made = {document["metadata"]["name"]: document for document in of_kind(documents, "Secret")}
    assert made.keys() == {"tocsin", "tocsin-nats-tls"}
    assert made["tocsin"]["data"].keys() == {key for _, key in secret_keys(documents)}
    assert all(secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"} for secret in made.values())
    assert len(set(made["tocsin"]["data"].values())) == len(made["tocsin"]["data"])


def test_other_jobs_and_settings_make_other_jobs() -> None:
    before = {*named(chart(), "Job")}
    after = {*named(chart(settings={"root": "other"}, jobs={"files": {"a.yaml": "jobs: []"}}), "Job")}
    assert {name.rpartition("-")[0] for name in before} == {name.rpartition("-")[0] for name in after}
    assert before.isdisjoint(after)


def test_certificate_names_every_possible_server() -> None:
    [secret] = [
        each for each in of_kind(chart(nats={"servers": 1}), "Secret") if each["metadata"]["name"] == "tocsin-nats-tls"
    ]
    certificate = x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["tls.crt"]))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {f"tocsin-nats-{number}.tocsin-nats" for number in range(5)} <= {*names.get_values_for_type(x509.DNSName)}


@pytest.mark.parametrize("nats", [{"accounts": "accounts {}"}, {"storage": {"maxBytes": "9GB"}}, {"servers": 5}])
def test_servers_restart_for_another_configuration(nats: Object) -> None:
    before, after = (
        {
            component(each): template(each)["metadata"]["annotations"]
            for each in of_kind(chart(**values), "StatefulSet")
            if component(each) == "nats"
        }
        for values in ({}, {"nats": nats})
    )
    assert before.keys() == after.keys() == {"nats"}
    assert before != after


def test_workers_get_no_egress_or_secrets_of_stages() -> None:
    secret = {"name": "TOCSIN_AUTH__CLIENT_SECRET", "valueFrom": {"secretKeyRef": {"name": "iam", "key": "secret"}}}
    rule = {"ports": [{"port": 443}]}
    for mode, stages in (("together", {"scheduler"}), ("separate", {*yaml.safe_load(VALUES)["stages"]["separate"]})):
        documents = chart(
            stages={"mode": mode, "env": [secret]}, api={"env": [secret]}, networkPolicy={"egress": [rule]}
        )
        deployments = of_kind(documents, "Deployment")
        assert {component(each) for each in deployments if secret["name"] in environment(each)} == {"api", *stages}
        [policy] = [
            each["spec"] for each in of_kind(documents, "NetworkPolicy") if each["spec"].get("egress") == [rule]
        ]
        selected = {
            component(each)
            for each in of_kind(documents, *WORKLOADS)
            if selects(policy["podSelector"], template(each)["metadata"]["labels"])
        }
        assert selected == {"api", *stages}


def test_no_bridged_queue_needs_no_executor() -> None:
    for mode in ("together", "separate"):
        documents = chart(settings={"queues": {"functions": None}}, stages={"mode": mode})
        assert {component(each) for each in of_kind(documents, *WORKLOADS)}.isdisjoint({EXECUTOR, "mq-bridge"})


def test_scaled_worker_has_no_fixed_replicas() -> None:
    documents = chart(workers={"example": {"autoscaling": {"enabled": True}}})
    [scaled] = of_kind(documents, "ScaledObject")
    [worker] = [w for w in of_kind(documents, "Deployment") if component(w) == "worker-example"]
    assert scaled["spec"]["scaleTargetRef"]["name"] == worker["metadata"]["name"]
    assert "replicas" not in worker["spec"]
    [trigger] = scaled["spec"]["triggers"]
    assert trigger["metadata"]["query"] == 'sum(max by (state) (tocsin_queue_tasks{queue="default"}))'


def test_api_without_any_token_is_refused() -> None:
    chart()
    with pytest.raises(Exception, match="the API would require no token"):
        chart(api={"adminToken": False})
    provided = chart(api={"adminToken": False}, settings={"auth": {"iam_url": "https://iam.example.com"}})
    assert "admin-token" not in {key for _, key in secret_keys(provided)}


@pytest.mark.parametrize(
    "wrong",
    [
        {"stages": {"mode": "apart"}},
        {"workers": {"Reports": {"args": ["worker"]}}},
        {"workers": {"reports": {"arg": ["worker"]}}},
        {"nats": {"servers": 2}},
        {"secret": {"existing": "tocsin"}},
    ],
)
def test_unknown_value_is_refused(wrong: Object) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    jsonschema.validate(yaml.safe_load(VALUES), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema)


@pytest.mark.parametrize(
    "values",
    [
        {"nats": {"servers": 1}, "metrics": {"podMonitor": {"enabled": True}}},
        {"nats": {"enabled": False, "url": "nats://mq:4222"}, "postgresql": {"enabled": False}},
        {"api": {"ingress": {"enabled": True}}, "networkPolicy": {"egress": [{"ports": [{"port": 443}]}]}},
        {"workers": {"example": None}, "jobs": {"files": {"hello.yaml": None}}},
        {"workers": {"reports": {"args": ["worker", "reports:worker"], "egress": [{"ports": [{"port": 443}]}]}}},
    ],
)
def test_chart_renders_valid_objects_for_other_values(values: Object) -> None:
    documents = chart(**values)
    custom = {"ScaledObject", "PodMonitor"}
    assert [p for document in documents if document["kind"] not in custom for p in problems(document)] == []
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert len(names) == len(set(names))


def test_pods_have_the_authority_of_a_database_outside() -> None:
    values: Object = {"enabled": False, "tls": {"existing": "database-ca"}}
    url = {"name": "DATABASE_URL", "valueFrom": {"secretKeyRef": {"name": "tocsin", "key": "database-url"}}}
    volume = {"secretName": "database-ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    with_history = 0
    for document in chart(postgresql=values):
        for pod in [document["spec"]["template"]["spec"]] if document["kind"] == "Deployment" else []:
            for each in pod["containers"]:
                if url in each.get("env", []):
                    with_history += 1
                    mounts = [mount for mount in each["volumeMounts"] if mount["mountPath"] == "/postgresql"]
                    assert [v["secret"] for v in pod["volumes"] if v["name"] == mounts[0]["name"]] == [volume]
    assert with_history >= 2  # the stages and the API
    text = yaml.safe_dump(chart(postgresql={"tls": {"existing": "database-ca"}}))
    assert "database-ca" not in text  # the database of the chart speaks no TLS
