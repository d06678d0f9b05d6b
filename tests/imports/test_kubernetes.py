"""CronJobs: schedule, zone, rules and containers become jobs, and every other field is said."""

import itertools
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.imports.given import SAMPLES, codes, imported, instants, robfig
from tests.properties import examples
from tocsin.domain.definition import DefinitionError
from tocsin.domain.template import render

_POD = "template: { spec: { containers: [{ name: a, image: b, command: [run] }] } }"


def _cron_job(spec: str, job: str = "") -> str:
    jobs = f"jobTemplate: {{ spec: {{ {job}{_POD} }} }}"
    return f"apiVersion: batch/v1\nkind: CronJob\nmetadata: {{ name: a }}\nspec: {{ {spec}, {jobs} }}\n"


def test_every_rule_of_a_manifest_is_written(tmp_path: Path) -> None:
    written, jobs = imported("kubernetes", (SAMPLES / "backup.yaml").read_text(), tmp_path, timezone=None)
    job = jobs["postgres-backup"]
    assert (job.schedule, job.timezone, job.enabled) == ("30 1 * * *", "America/New_York", True)
    assert (job.overlap_policy, job.catch_up, job.starting_deadline) == ("skip", "once", 600.0)
    assert (job.execution_timeout, job.retention) == (3_600.0, 86_400.0)
    assert (job.retry.max_attempts, job.retry.initial_delay, job.retry.max_delay) == (3, 10.0, 360.0)
    assert [(step.name, step.depends_on) for step in job.dag] == [("wait", ()), ("dump", ("wait",))]
    container = job.dag[1].container
    assert container is not None
    assert (container.image, container.command) == ("postgres:16", ("/bin/sh", "-c"))
    assert rendered(container.args) == ["pg_dump app > /backup/$${DATABASE}.sql"]
    assert (container.env, container.grace) == ({"DATABASE": "app"}, 30.0)
    assert (container.namespace, container.service_account) == ("database", "backup")
    assert job.meta["kubernetes"] == {
        "namespace": "database",
        "labels": {"app.kubernetes.io/name": "postgres-backup"},
    }
    assert codes(written) >= {
        "container-settings",
        "containers-as-steps",
        "environment-not-supported",
        "field-not-supported",
        "fold-fires-once",
        "history-limit-not-supported",
        "pod-restricted",
    }
    assert "images: [docker.io/library/busybox, docker.io/library/postgres]" in written.text
    for lost in ("pod.volumes", "container dump.volumeMounts", "PGPASSWORD"):
        assert lost in written.text


def test_lost_parts_of_a_pod_are_said(tmp_path: Path) -> None:
    written, jobs = imported("kubernetes", (SAMPLES / "pod.yaml").read_text(), tmp_path)
    job = jobs["balancer-cronjob"]
    container = job.container
    assert container is not None
    assert (job.schedule, job.overlap_policy, container.command) == ("*/2 * * * *", "skip", ("/bin/balancer",))
    assert container.args == ("--policy-file", "/policy/policy.yaml", "--v", "3")
    assert (container.namespace, container.service_account) == ("kube-system", "balancer-sa")
    assert container.resources.requests == {"cpu": "500m", "memory": "256Mi"}
    lost = [finding.text.split("`")[1] for finding in written.findings if finding.code == "field-not-supported"]
    assert sorted(lost) == [
        *("container balancer.envFrom", "container balancer.imagePullPolicy", "container balancer.livenessProbe"),
        *("container balancer.securityContext", "container balancer.volumeMounts"),
        *("pod.priorityClassName", "pod.volumes", "spec.jobTemplate.spec.template.metadata.name"),
    ]
    assert written.losses == len(lost)


def test_lists_and_documents_become_jobs(tmp_path: Path) -> None:
    written, jobs = imported("kubernetes", (SAMPLES / "list.yaml").read_text(), tmp_path, timezone=None)
    assert {name: (job.schedule, job.timezone) for name, job in jobs.items()} == {
        "hello": ("*/1 * * * *", "UTC"),
        "prune": ("0 2-4 * * 1-5", "Europe/Berlin"),
        "hello-2": ("@hourly", "UTC"),
        "every": ("@every 1h30m", "UTC"),
        "starred": ("0 5 */2 * 1", "Europe/Berlin"),
    }
    assert (jobs["prune"].enabled, jobs["prune"].overlap_policy) == (False, "cancel_previous")
    assert jobs["prune"].retry.max_attempts == 1
    assert jobs["hello"].retry.max_attempts == 7
    assert codes(written, "prune") >= {"parallel-runs-not-supported"}
    assert "interval-anchor" not in codes(written, "every")
    assert codes(written) >= {"document-skipped", "timezone-assumed"}
    for job in (jobs["hello"], jobs["prune"], jobs["starred"]):
        assert instants(job) == robfig(job.schedule or "", job.timezone)


def rendered(words: tuple[str, ...]) -> list[str]:
    return [render(word, {}, limit=1_000) for word in words]


@pytest.mark.parametrize(
    ("fields", "command", "args"),
    [
        (
            "command: [run, '{{ x }}', '${Y}', '$(Z)', '{% a %}']",
            ["run", "{{ x }}", "$${Y}", "$(Z)", "{% a %}"],
            [],
        ),
        ("command: [sh], args: [-c, 'echo $${X} $$$$']", ["sh"], ["-c", "echo $${X} $$"]),
        ("args: [5, true, null]", [], ["5", "true", ""]),
        ("args: [$(A)-$(B), $$(A)], env: [{ name: A, value: '1' }, { name: B, value: $(A)2 }]", [], ["1-12", "$(A)"]),
        ("args: [$(A)], env: [{ name: A, valueFrom: { secretKeyRef: { name: a, key: a } } }]", [], ["$(A)"]),
        ("args: [$(A)], env: [{ name: A, value: '1' }, { name: A, valueFrom: { fieldRef: { a: b } } }]", [], ["$(A)"]),
        ("args: [$(A)], env: [{ name: A, valueFrom: { fieldRef: { a: b } } }, { name: A, value: '1' }]", [], ["1"]),
    ],
)
def test_container_keeps_its_program(fields: str, command: list[str], args: list[str], tmp_path: Path) -> None:
    text = _cron_job('schedule: "0 5 * * *"').replace("command: [run]", fields)
    _, jobs = imported("kubernetes", text, tmp_path)
    container = jobs["a"].container
    assert container is not None
    assert (container.image, rendered(container.command), rendered(container.args)) == ("b", command, args)


def test_resources_of_a_container_are_kept(tmp_path: Path) -> None:
    resources = (
        "{ requests: { cpu: 0.5, memory: 64Mi }, limits: { memory: '1e9', nvidia.com/gpu: 1 }, claims: [{ name: a }] }"
    )
    text = _cron_job('schedule: "0 5 * * *"').replace("command: [run]", f"resources: {resources}")
    written, jobs = imported("kubernetes", text, tmp_path)
    container = jobs["a"].container
    assert container is not None
    assert (container.resources.requests, container.resources.limits) == ({"cpu": "0.5", "memory": "64Mi"}, {})
    for lost in ("limits.memory", "limits.nvidia.com/gpu", "resources.claims"):
        assert f"container a.{'' if lost.startswith('resources') else 'resources.'}{lost}`" in written.text


def test_rules_of_a_pod_are_kept_or_said(tmp_path: Path) -> None:
    pod = "serviceAccountName: Not_A_Name, terminationGracePeriodSeconds: 600, tolerations: [{ key: gpu }], containers"
    text = _cron_job('schedule: "0 5 * * *"').replace("containers", pod)
    written, jobs = imported("kubernetes", text, tmp_path)
    container = jobs["a"].container
    assert container is not None
    assert (container.service_account, container.namespace, container.grace) == (None, None, 30.0)
    for lost in ("pod.serviceAccountName", "pod.terminationGracePeriodSeconds", "pod.tolerations"):
        assert f"`{lost}`" in written.text


def test_jobs_without_a_namespace_get_the_default(tmp_path: Path) -> None:
    text = _cron_job('schedule: "0 5 * * *"')
    written, jobs = imported(
        "kubernetes", f"{text}---\n{text.replace('name: a', 'name: c, namespace: batch', 1)}", tmp_path
    )
    assert {name: job.container and job.container.namespace for name, job in jobs.items()} == {"a": None, "c": "batch"}
    assert "namespaces: [default, batch]" in written.text  # a worker uses the first


def test_container_without_an_image_is_a_comment(tmp_path: Path) -> None:
    text = _cron_job('schedule: "0 5 * * *"').replace("image: b, ", "")
    written, jobs = imported("kubernetes", text, tmp_path)
    assert (jobs, "job-not-registrable" in codes(written)) == ({}, True)


def test_variables_do_not_multiply(tmp_path: Path) -> None:
    env = "{ name: A0, value: 0123456789 }"
    for number in range(60):
        env += f", {{ name: A{number + 1}, value: {f'$(A{number})' * 4} }}"
    text = _cron_job('schedule: "0 5 * * *"').replace("command: [run]", f"env: [{env}], args: [$(A60)]")
    written, jobs = imported("kubernetes", text, tmp_path)
    assert (jobs, "job-not-registrable" in codes(written)) == ({}, True)
    assert len(written.text) < 50_000


@pytest.mark.parametrize("start", [datetime(2026, 3, 27, tzinfo=UTC), datetime(2026, 10, 23, tzinfo=UTC)])
def test_clock_changes_are_kept(tmp_path: Path, start: datetime) -> None:
    for expression in ("*/30 1-3 * * *", "15 * * * *", "0 */2 * * *", "0 1-3 * * 0"):
        text = _cron_job(f'schedule: "{expression}", timeZone: Europe/Berlin')
        written, jobs = imported("kubernetes", text, tmp_path)
        assert instants(jobs["a"], after=start) == robfig(expression, "Europe/Berlin", after=start)
        assert "fold-fires-once" not in codes(written)


def test_fixed_time_in_a_repeated_hour_is_said(tmp_path: Path) -> None:
    written, jobs = imported("kubernetes", _cron_job('schedule: "30 2 * * *", timeZone: Europe/Berlin'), tmp_path)
    start = datetime(2026, 10, 23, tzinfo=UTC)
    assert "fold-fires-once" in codes(written, "a")
    assert len(set(robfig("30 2 * * *", "Europe/Berlin", after=start)) - set(instants(jobs["a"], 60, after=start))) == 1


@pytest.mark.parametrize(
    ("spec", "job", "code"),
    [
        ("suspend: false", "", None),
        ('schedule: "0 5 * * *", startingDeadlineSeconds: -1', "", "field-not-supported"),
        ('schedule: "0 5 * * *", concurrencyPolicy: Sometimes', "", "field-not-supported"),
        ('schedule: "0 5 * * *"', "backoffLimit: 500, ", "field-not-supported"),
        ('schedule: "0 5 * * *"', "completions: 4, ", "parallel-runs-not-supported"),
        ('schedule: "0 5 * * *"', "completionMode: Indexed, ", "field-not-supported"),
        ('schedule: "0 5 * * *"', "podFailurePolicy: { rules: [1] }, ", "field-not-supported"),
        ('schedule: "0 5 * * *", timeZone: Mars', "", "timezone-unknown"),
        ('schedule: "0 5 * *"', "", "schedule-not-expressible"),
        ('schedule: "@every soon"', "", "schedule-not-expressible"),
        ("schedule: [1, 2]", "", "schedule-not-expressible"),
        (
            'schedule: "0 5 * * *", concurrencyPolicy: { a: [1] }',
            "parallelism: [1], backoffLimit: {}, ",
            "field-not-supported",
        ),
    ],
)
def test_a_field_without_an_equivalent_is_said(tmp_path: Path, spec: str, job: str, code: str | None) -> None:
    written, jobs = imported("kubernetes", _cron_job(spec, job), tmp_path)
    assert list(jobs) == ["a"]
    assert code is None or code in codes(written, "a")
    assert written.losses


@pytest.mark.parametrize(
    ("template", "lost"),
    [
        ("metadata: { labels: { a: b } }, spec: { template: { spec: %s } }", "spec.jobTemplate.metadata.labels"),
        ("spec: { template: { metadata: { labels: { a: b } }, spec: %s } }", "template.metadata.labels"),
        ("spec: { template: { metadata: { annotations: { a: b } }, spec: %s } }", "template.metadata.annotations"),
        ("other: 1, spec: { template: { spec: %s } }", "spec.jobTemplate.other"),
        (
            "spec: { template: { spec: { containers: [{ name: c, image: i }], initContainers: text } } }",
            "initContainers",
        ),
        ("spec: { template: { spec: { containers: [{ name: c, image: i }, text] } } }", "pod.containers[1]"),
        ("spec: { template: { spec: { containers: [{ name: c, image: i, args: text }] } } }", "container c.args"),
        ("spec: { template: { spec: { containers: [{ name: c, image: i, env: { A: b } }] } } }", "container c.env"),
        ("spec: { template: { spec: { containers: [{ name: c, image: i, env: [A] }] } } }", "container c.env[0]"),
    ],
)
def test_part_of_a_manifest_is_never_dropped(template: str, lost: str, tmp_path: Path) -> None:
    job = template.replace("%s", "{ containers: [{ name: c, image: i }] }")
    text = "apiVersion: batch/v1\nkind: CronJob\nmetadata: { name: a }\n"
    text += f'spec: {{ schedule: "0 5 * * *", jobTemplate: {{ {job} }} }}\n'
    written, jobs = imported("kubernetes", text, tmp_path)
    assert list(jobs) == ["a"]
    assert [lost in finding.text for finding in written.findings if finding.code == "field-not-supported"] == [True]


@pytest.mark.parametrize(
    ("image", "fields", "pod", "lost"),
    [
        ("i:1", "imagePullPolicy: Always", "", "container c.imagePullPolicy"),
        ("i", "imagePullPolicy: IfNotPresent", "", "container c.imagePullPolicy"),
        ("i:1", "terminationMessagePolicy: FallbackToLogsOnError", "", "container c.terminationMessagePolicy"),
        ("i:1", "terminationMessagePath: /a", "", "container c.terminationMessagePath"),
        ("i:1", "", "schedulerName: volcano, ", "pod.schedulerName"),
        ("i:1", "", "dnsPolicy: None, ", "pod.dnsPolicy"),
        ("i:1", "imagePullPolicy: IfNotPresent, terminationMessagePolicy: File", "dnsPolicy: ClusterFirst, ", None),
        ("i:latest", "imagePullPolicy: Always", "schedulerName: default-scheduler, ", None),
    ],
)
def test_value_is_lost_unless_each_pod_has_it(
    image: str, fields: str, pod: str, lost: str | None, tmp_path: Path
) -> None:
    text = _cron_job('schedule: "0 5 * * *"').replace(
        "containers: [{ name: a, image: b, command: [run] }]",
        f"{pod}containers: [{{ name: c, image: '{image}', {fields} }}]",
    )
    written, _ = imported("kubernetes", text, tmp_path)
    found = [finding.text.split("`")[1] for finding in written.findings if finding.code == "field-not-supported"]
    assert found == ([] if lost is None else [lost])


@pytest.mark.parametrize("items", ["[{ apiVersion: v1, kind: List, items: [] }]", "text", "{ a: b }"])
def test_list_that_is_not_read_is_a_loss(items: str, tmp_path: Path) -> None:
    written, jobs = imported("kubernetes", f"apiVersion: v1\nkind: List\nitems: {items}\n", tmp_path)
    assert (jobs, codes(written), written.losses) == ({}, {"entry-not-readable"}, 1)


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("a: 1\nkind: [\n", "invalid-yaml", ":3:"),
        ("kind: CronJob\nkind: CronJob\n", "duplicate-key", ":2:"),
        ("kind: {{ .Values.kind }}\n", "", ":1:"),
        ("a: !python/object/apply:os.system ['true']\n", "unsupported-tag", ":1:"),
        ("[" * 100_000, "nested-too-deep", ""),
        ("a: b\x00\n", "control-character", ":1"),
        ("a" * 5_000_000, "file-too-large", ""),
    ],
)
def test_hostile_manifest_is_refused_with_its_line(tmp_path: Path, text: str, code: str, line: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        imported("kubernetes", text, tmp_path)
    assert code in {"", caught.value.problems[0].code}
    assert f"source{line}" in str(caught.value)


def test_template_of_helm_is_recognized(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="helm template"):
        imported("kubernetes", "{{- if .Values.enabled }}\nkind: CronJob\n{{- end }}\n", tmp_path)


def test_empty_file_is_said(tmp_path: Path) -> None:
    for text in ("", "---\n", "# nothing\n"):
        written, jobs = imported("kubernetes", text, tmp_path)
        assert (jobs, codes(written)) == ({}, {"document-skipped"})


def test_aliases_do_not_multiply(tmp_path: Path) -> None:
    bomb = "x-a: &a [z, z, z, z, z, z, z, z, z]\n"
    names = "abcdefghij"
    for before, name in itertools.pairwise(names):
        bomb += f"x-{name}: &{name} [{', '.join(['*' + before] * 9)}]\n"
    places = [
        "metadata: { name: *j, namespace: *j, labels: { a: *j } }\nspec: { schedule: *j, timeZone: *j }",
        'metadata: { name: a, annotations: *j }\nspec: { schedule: "0 5 * * *", concurrencyPolicy: *j, suspend: *j, other: *j }',
        "metadata: *j\nspec: *j",
        (
            "metadata: { name: a }\nspec: { jobTemplate: { spec: { backoffLimit: *j, parallelism: *j, template: { spec: "
            "{ volumes: *j, containers: [{ name: *j, image: *j, command: *j, env: [{ name: *j, value: *j }, "
            "{ name: b, valueFrom: *j }] }] } } } } }"
        ),
    ]
    for place in places:
        written, _ = imported("kubernetes", f"apiVersion: batch/v1\nkind: CronJob\n{bomb}{place}\n", tmp_path)
        assert len(written.text) < 10_000


def test_many_aliases_of_containers_are_limited(tmp_path: Path) -> None:
    items = ", ".join(["*c"] * 3_000)
    pod = f"{{ initContainers: [{items}], containers: [*c] }}"
    text = "x: &c { name: c, image: i, command: [run] }\napiVersion: batch/v1\nkind: CronJob\nmetadata: { name: a }\n"
    text += f'spec: {{ schedule: "0 5 * * *", jobTemplate: {{ spec: {{ template: {{ spec: {pod} }} }} }} }}\n'
    written, jobs = imported("kubernetes", text, tmp_path)
    assert len(jobs["a"].dag) <= 100
    assert "field-not-supported" in codes(written, "a")


@settings(max_examples=examples(60), deadline=None)
@given(
    minute=st.sampled_from(["0", "*/20", "*", "5,35", "10-50/20", "7/15", "?"]),
    hour=st.sampled_from(["*", "1-3", "*/2", "0-4/2", "1/1"]),
    day=st.sampled_from(["*", "?", "1,15", "*/3", "1-7"]),
    week_day=st.sampled_from(["*", "?", "0", "mon-fri", "*/2", "SAT"]),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]),
)
def test_any_schedule_keeps_its_instants(
    minute: str, hour: str, day: str, week_day: str, zone: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    expression = f"{minute} {hour} {day} * {week_day}"
    text = _cron_job(f'schedule: "{expression}", timeZone: {zone}')
    _, jobs = imported("kubernetes", text, tmp_path_factory.mktemp("manifest"))
    assert instants(jobs["a"], 30) == robfig(expression.replace("?", "*"), zone, 30)


@pytest.mark.parametrize(
    "text",
    [
        "kind: Template\nobjects: [{kind: Service}, {kind: CronJob, spec: {schedule: '${SCHEDULE}'}}]\n",
        "kind: CronWorkflow\nspec: {schedule: '0 0 * * *'}\n",
        "kind: Backup\nspec: {schedules: ['0 0 * * *']}\n",
    ],
)
def test_schedule_of_another_kind_is_a_loss(text: str, tmp_path: Path) -> None:
    written, jobs = imported("kubernetes", text, tmp_path)
    assert jobs == {}
    assert codes(written) == {"entry-not-readable"}
    assert written.losses == 1
