"""The container of a definition: what the door checks, and the names of images."""

import pytest

from tests.domain.test_builtin_work import job, problems_of
from tocsin.domain.definition import runs_code
from tocsin.domain.definition.image import ImageError, covers, read_image, read_pattern

DIGEST = "sha256:" + "0a" * 32


def test_container_implies_its_function_and_runs_code() -> None:
    work = job(container="registry.example.com/etl:1.4")
    assert work.function == "tocsin.container"
    assert work.container is not None
    assert work.container.image == "registry.example.com/etl:1.4"
    assert runs_code(work)


def test_plain_numbers_are_quantities() -> None:
    work = job(container={"image": "etl", "resources": {"limits": {"cpu": 2, "memory": "1.5Gi"}}}).container
    assert work is not None
    assert work.resources.limits == {"cpu": "2", "memory": "1.5Gi"}


@pytest.mark.parametrize(
    ("fields", "field", "code"),
    [
        ({"image": "{{ input.image }}"}, "container.image", "invalid-value"),
        ({"image": "etl:${env:TAG}"}, "container.image", "invalid-value"),
        ({"image": ""}, "container.image", "invalid-value"),
        ({"command": ["{{ input.program }}"]}, "container.command", "invalid-value"),
        ({"command": [""]}, "container.command", "invalid-value"),
        ({"args": ["${env:TOKEN}"]}, "container.args", "secret-reference-not-allowed"),
        ({"args": ["{{ x }}"]}, "container.args", "malformed-template"),
        ({"args": ["x"] * 257}, "container.args", "too-large"),
        ({"args": ["x" * 70_000]}, "container", "too-large"),
        ({"env": {"A-B": "1"}}, "container.env", "invalid-value"),
        ({"env": {"TOCSIN_JOB": "1"}}, "container.env", "reserved-name"),
        ({"env": {"A": "{{ x }}"}}, "container.env.A", "malformed-template"),
        ({"env": {"A": "${vault:x}"}}, "container.env.A", "malformed-secret-reference"),
        ({"namespace": "Batch"}, "container.namespace", "invalid-value"),
        ({"namespace": "{{ input.x }}"}, "container.namespace", "invalid-value"),
        ({"service_account": "-a"}, "container.service_account", "invalid-value"),
        (
            {"resources": {"limits": {"nvidia.com/gpu": 1}}},
            "container.resources.limits.nvidia.com/gpu.[key]",
            "unknown-choice",
        ),
        ({"resources": {"limits": {"memory": "-1"}}}, "container.resources.limits.memory", "invalid-value"),
        ({"resources": {"limits": {"memory": True}}}, "container.resources.limits.memory", "wrong-type"),
        ({"grace": "31s"}, "container.grace", "out-of-range"),
        ({"retryable_exit_codes": [0]}, "container.retryable_exit_codes[0]", "out-of-range"),
        ({"volumes": []}, "container.volumes", "unknown-field"),
        ({"privileged": True}, "container.privileged", "unknown-field"),
    ],
)
def test_wrong_container_is_refused_with_code(fields: dict[str, object], field: str, code: str) -> None:
    assert [(p.field, p.code) for p in problems_of(container={"image": "etl"} | fields)] == [(field, code)]


@pytest.mark.parametrize(
    ("written", "whole"),
    [
        ("busybox", "docker.io/library/busybox"),
        ("busybox:1.36", "docker.io/library/busybox:1.36"),
        ("team/etl", "docker.io/team/etl"),
        ("docker.io/busybox", "docker.io/library/busybox"),
        ("localhost/etl", "localhost/etl"),
        ("host:5000/etl:1.4", "host:5000/etl:1.4"),
        (f"registry.example.com/a/b:1@{DIGEST}", f"registry.example.com/a/b:1@{DIGEST}"),
    ],
)
def test_short_name_has_one_meaning(written: str, whole: str) -> None:
    assert str(read_image(written)) == whole


@pytest.mark.parametrize("text", ["", "UP/x", "a b", "a/", "a@sha256:1", "a:", "http://a/b", "a\n", "x" * 513])
def test_other_text_is_no_image(text: str) -> None:
    with pytest.raises(ImageError):
        read_image(text)


@pytest.mark.parametrize(
    ("pattern", "image", "is_covered"),
    [
        ("registry.example.com/", "registry.example.com/a/b:1", True),
        ("registry.example.com/", "registry.example.com.evil.com/a", False),
        ("registry.example.com/team/", "registry.example.com/team/etl", True),
        ("registry.example.com/team/", "registry.example.com/teamevil/etl", False),
        ("docker.io/bitnami/", "bitnami/redis:7", True),
        ("registry.example.com/etl", "registry.example.com/etl:1.4", True),
        ("registry.example.com/etl", "registry.example.com/etl/x", True),
        ("registry.example.com/etl", "registry.example.com/etl2", False),
        ("busybox", "docker.io/library/busybox:1", True),
        ("busybox", "evil/busybox", False),
        ("registry.example.com/etl:1.4", "registry.example.com/etl:1.4", True),
        ("registry.example.com/etl:1.4", "registry.example.com/etl:1.5", False),
        ("registry.example.com/etl:1.4", f"registry.example.com/etl:1.4@{DIGEST}", False),
        (f"registry.example.com/etl@{DIGEST}", f"registry.example.com/etl:9@{DIGEST}", True),
        (f"registry.example.com/etl@{DIGEST}", "registry.example.com/etl", False),
    ],
)
def test_entry_covers_images(pattern: str, image: str, is_covered: bool) -> None:  # noqa: FBT001 - a column of the table
    assert covers(read_pattern(pattern), read_image(image)) is is_covered


@pytest.mark.parametrize("text", ["registry.example.com", "localhost:5000", "etl/", "*", ""])
def test_ambiguous_entry_is_refused(text: str) -> None:
    with pytest.raises(ImageError):
        read_pattern(text)
