"""The Jobs of containers, in a double of an API server."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.domain.given import ID, JOB
from tests.kubernetes.double import ApiServer
from tests.worker.builtin.container_given import IMAGE, ContainerBench
from tocsin.settings import SettingsError


@pytest.fixture
async def containers(tmp_path: Path) -> AsyncIterator[ContainerBench]:
    """Return a bench with a cluster that runs nothing by itself."""
    async with ApiServer().running() as server:
        yield ContainerBench(server, tmp_path)


async def test_container_runs_to_its_result(containers: ContainerBench) -> None:
    containers.store.on_pod = lambda pod: containers.store.finish(pod, lines=(b"counting", b'{"rows": 4}'))
    assert await containers.execute(result="json") == {"rows": 4}


async def test_job_runs_once_and_is_restricted(containers: ContainerBench) -> None:
    done(containers)
    assert await containers.execute(timeout=90.5, grace=2.5) == {"exit_code": 0}
    job = containers.job
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert (spec["backoffLimit"], spec["completions"], spec["activeDeadlineSeconds"]) == (0, 1, 91)
    assert (spec["ttlSecondsAfterFinished"], spec["podReplacementPolicy"]) == (3_600, "Failed")
    assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"]) == ("Never", 3)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert job["metadata"]["namespace"] == "batch"
    labels = job["metadata"]["labels"]
    assert (labels["tocsin/job"], labels["tocsin/execution-id"]) == (JOB.replace("/", "_"), ID)
    assert (labels["tocsin/step"], labels["tocsin/attempt"]) == ("main", "1")
    assert labels.items() <= spec["template"]["metadata"]["labels"].items()


async def test_definition_fills_the_container(containers: ContainerBench) -> None:
    done(containers)
    await containers.execute(
        command=["python", "-m", "etl"],
        args=["--day={{ input.day }}", "$(TOKEN)"],
        env={"LEVEL": "in{{ input.level }}", "COST": "$5"},
        resources={"requests": {"cpu": 0.5}, "limits": {"memory": "256Mi"}},
        namespace="reports",
        input={"day": "$(LEVEL)", "level": "fo"},
    )
    [container] = containers.job["spec"]["template"]["spec"]["containers"]
    assert container["image"] == IMAGE
    assert container["command"] == ["python", "-m", "etl"]
    assert container["args"] == ["--day=$$(LEVEL)", "$$(TOKEN)"]  # Kubernetes reads $$ as $, and expands nothing
    values = {each["name"]: each.get("value") for each in container["env"]}
    assert (values["LEVEL"], values["COST"], values["TOCSIN_ATTEMPT"]) == ("info", "$$5", "1")
    assert container["resources"] == {"requests": {"cpu": "0.5"}, "limits": {"memory": "256Mi"}}
    assert containers.job["metadata"]["namespace"] == "reports"


async def test_secrets_are_in_an_owned_secret(containers: ContainerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "pass-$(HOME)-word")
    monkeypatch.setenv("OUTPUT_SECRET", "abc")  # too short to be found in a text
    done(containers)
    await containers.execute(
        env={"OWN": "x:${env:DB_PASSWORD}", "SHORT": "${env:OUTPUT_SECRET}", "OF_INPUT": "{{ input.p }}", "PLAIN": "1"},
        input={"p": "${env:DB_PASSWORD}"},
    )
    job, [secret] = containers.job, containers.store.secrets.values()
    assert secret["stringData"] == {
        "OWN": "x:pass-$(HOME)-word",
        "SHORT": "abc",
        "OF_INPUT": "pass-$(HOME)-word",
    }
    [owner] = secret["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], secret["immutable"]) == ("Job", job["metadata"]["uid"], True)
    assert "pass-" not in str(job)
    [container] = job["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each for each in container["env"]}
    assert variables["OWN"]["valueFrom"]["secretKeyRef"] == {"name": job["metadata"]["name"], "key": "OWN"}


async def test_secret_of_the_input_is_no_argument(containers: ContainerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "pass-word")
    failure = await containers.fail(args=["{{ input.p }}"], input={"p": "${env:DB_PASSWORD}"})
    assert (failure.type, failure.retryable) == ("wrong_input", False)
    assert "pass-word" not in failure.message
    assert not containers.store.created


async def test_line_of_a_secret_may_be_an_argument(containers: ContainerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any text may have it, such as the first line of a file."""
    monkeypatch.setenv("DB_PASSWORD", "apiVersion: v1\ntoken: hunter-22-hunter\n")
    done(containers)
    await containers.execute(args=["apiVersion: v1"], env={"FILE": "${env:DB_PASSWORD}"})
    [container] = containers.job["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["apiVersion: v1"]


async def test_null_character_in_variable_is_final(containers: ContainerBench) -> None:
    failure = await containers.fail(env={"DAY": "{{ input.day }}"}, input={"day": "a\0b"})
    assert (failure.type, failure.retryable) == ("wrong_input", False)
    assert not containers.store.created


async def test_template_of_the_operator_is_filled(containers: ContainerBench, tmp_path: Path) -> None:
    template = {
        "metadata": {"labels": {"team": "etl", "tocsin/attempt": "9"}},
        "spec": {
            "nodeSelector": {"disk": "ssd"},
            "restartPolicy": "Always",
            "securityContext": {"runAsUser": 1000},
            "imagePullSecrets": [{"name": "registry"}],
            "containers": [
                {
                    "name": "work",
                    "env": [{"name": "PROXY", "value": "x"}],
                    "resources": {"limits": {"memory": "1Gi", "cpu": "1"}},
                }
            ],
        },
    }
    (tmp_path / "pod.yaml").write_text(json.dumps(template))
    containers.offer(templates={"default": str(tmp_path / "pod.yaml")})
    containers.store.on_pod = lambda pod: containers.store.finish(pod, lines=(b"ok",))
    assert await containers.execute(resources={"limits": {"memory": "2Gi"}}, result="last_line") == "ok"
    job = containers.job["spec"]["template"]
    assert (job["metadata"]["labels"]["team"], job["metadata"]["labels"]["tocsin/attempt"]) == ("etl", "1")
    spec, [container] = job["spec"], job["spec"]["containers"]
    assert (spec["nodeSelector"], spec["restartPolicy"]) == ({"disk": "ssd"}, "Never")
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert (container["name"], container["resources"]) == ("work", {"limits": {"memory": "2Gi", "cpu": "1"}})
    failure = await ContainerBench.fail(containers.another(), env={"PROXY": "y"})
    assert failure.type == "container_not_allowed"


@pytest.mark.parametrize(
    "template",
    [
        "[]",
        "spec: [1]",
        "spec: {containers: [{image: x}]}",
        "spec: {containers: [{}, {}]}",
        "{containers: []}",
        "spec: [",
        "spec: {containers: [{env: [{name: KEY, value: @hunter2}]}]}",
        "spec: !hunter2 x",
        "spec: !!int hunter2",
        "metadata: [x]",
        "metadata: {labels: [team]}",
        "spec: {securityContext: restricted}",
        "spec: {containers: [{env: {PROXY: x}}]}",
        "spec: {containers: [{env: [PROXY]}]}",
        "spec: {containers: [{resources: {limits: 1Gi}}]}",
    ],
)
async def test_wrong_template_is_refused_at_the_start(
    template: str, containers: ContainerBench, tmp_path: Path
) -> None:
    (tmp_path / "pod.yaml").write_text(template)
    with pytest.raises(SettingsError) as raised:
        containers.offer(templates={"gpu": str(tmp_path / "pod.yaml")})
    assert [problem.field for problem in raised.value.problems] == ["builtin.container.templates.gpu"]
    assert "hunter2" not in str(raised.value), "a template may hold secrets"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"image": "registry.example.com.evil.com/etl"}, "images"),
        ({"image": "etl"}, "images"),
        ({"namespace": "kube-system"}, "namespaces"),
        ({"service_account": "admin"}, "service_accounts"),
        ({"template": "gpu"}, "templates"),
    ],
)
async def test_work_that_is_not_listed_is_refused(
    fields: dict[str, str], said: str, containers: ContainerBench
) -> None:
    failure = await containers.fail(**fields)
    assert (failure.type, failure.retryable) == ("container_not_allowed", True)
    assert f"builtin.container.{said}" in failure.message
    assert containers.server.requests == []


@pytest.mark.parametrize(
    ("rules", "field", "code"),
    [
        ({"namespaces": []}, "builtin.container.namespaces", "required"),
        ({"images": []}, "builtin.container.images", "required"),
        ({"kubeconfig": None}, "builtin.container.kubeconfig", "required"),
        ({"kubeconfig": "/nowhere"}, "builtin.container.kubeconfig", "file-not-found"),
    ],
)
async def test_rules_that_allow_nothing_are_refused(
    rules: dict[str, Any], field: str, code: str, containers: ContainerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SettingsError) as raised:
        containers.offer(**rules)
    assert [(problem.field, problem.code) for problem in raised.value.problems] == [(field, code)]


def done(containers: ContainerBench) -> None:
    containers.store.on_pod = containers.store.finish
