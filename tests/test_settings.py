"""Settings: which place wins, what is refused and in what words, and what is never shown."""

from pathlib import Path
from typing import Protocol

import pytest

from tocsin.settings import MASK, Settings, SettingsError, load, origins, shown, with_options

HIP62 = """
server:  { host: 0.0.0.0, port: 8062 }
database: { url: "${DATABASE_URL}", max_connections: 10 }
nats:    { url: "${NATS_URL}", user: scheduler, password: "${NATS_PASSWORD}" }
leader:  { ttl: 15s, renew_interval: 5s }
execution: { default_timeout: 300s, history_retention_days: 90 }
jobs_file: /etc/scheduler/jobs.yaml
auth:    { iam_url: "https://hanzo.id", verify_tokens: true }
metrics: { enabled: true, port: 9090 }
"""


class Write(Protocol):
    def __call__(self, text: str, name: str = "tocsin.yaml") -> Path: ...


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of the machine that the tests run on."""
    for name in ("NATS_URL", "DATABASE_URL", "TOCSIN_NATS_URL", "TOCSIN_CONFIG", "TOCSIN_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(text: str, name: str = "tocsin.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, "utf-8")
        return path

    return _write


def refusal(text: str, write: Write) -> str:
    with pytest.raises(SettingsError) as refused:
        load(write(text))
    return str(refused.value).replace(f"{write(text)}: ", "")


def test_without_anything_the_defaults_hold() -> None:
    settings = load()
    assert settings == Settings()
    assert set(origins(settings).values()) == {"default"}


def test_document_of_hip_62_is_read_unchanged(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://db/scheduler")
    monkeypatch.setenv("NATS_URL", "nats://mq:4222")
    monkeypatch.setenv("NATS_PASSWORD", "hunter2")
    settings = load(write(HIP62))
    assert settings.database.url == "postgresql://db/scheduler"
    assert settings.nats.password is not None
    assert settings.nats.password.get_secret_value() == "hunter2"
    assert settings.leader.ttl == 15
    assert settings.jobs_file == Path("/etc/scheduler/jobs.yaml")
    assert settings.auth.iam_url == "https://hanzo.id"


def test_history_is_in_the_data_directory_by_default(tmp_path: Path) -> None:
    assert Settings(data_dir=tmp_path).database.url == f"sqlite:///{tmp_path}/history.db"
    assert load(options={("data_dir",): tmp_path}).database.url == f"sqlite:///{tmp_path}/history.db"
    assert Settings.model_validate({"database": {"url": "sqlite:///x.db"}}).database.url == "sqlite:///x.db"


def test_plain_settings_read_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_ROOT", "other")
    assert Settings().root == "tocsin"


def test_the_first_place_that_names_a_field_wins(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("nats: { url: 'nats://file:1', user: filed }\nroot: filed\nreplicas: 3\n")
    monkeypatch.setenv("TOCSIN_ROOT", "set")
    monkeypatch.setenv("NATS_URL", "nats://deployed:1")
    monkeypatch.setenv("TOCSIN_NATS_URL", "nats://set:1")
    settings = load(path, options={("root",): "given", ("nats", "url"): None})
    assert (settings.root, settings.nats.url, settings.nats.user) == ("given", "nats://set:1", "filed")
    found = origins(settings)
    assert found["root"] == "command line"
    assert found["nats.url"] == "TOCSIN_NATS_URL"
    assert found["nats.user"] == found["replicas"] == str(path)
    assert found["leader.ttl"] == "default"


@pytest.mark.parametrize(
    ("variable", "value", "field", "expected"),
    [
        ("TOCSIN_LEADER__TTL", "30s", "leader.ttl", "30s"),
        ("TOCSIN_LEADER__TTL", "PT1M", "leader.ttl", "1m"),
        ("TOCSIN_LEADER", '{"ttl": "20s"}', "leader.ttl", "20s"),
        ("TOCSIN_DATABASE_URL", "sqlite:///x.db", "database.url", "sqlite:///x.db"),
        ("DATABASE_URL", "sqlite:///y.db", "database.url", "sqlite:///y.db"),
        ("TOCSIN_NATS__URL", "nats://z:1", "nats.url", "nats://z:1"),
        ("TOCSIN_RECOVERY__GRACE", "90s", "recovery.grace", "1m30s"),
        ("TOCSIN_QUEUES", '{"gpu": {"transport": "mq"}}', "queues.gpu.transport", "mq"),
    ],
)
def test_variables_set_fields(
    variable: str, value: str, field: str, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    settings = load()
    assert shown(settings)[field] == expected
    assert origins(settings)[field] == variable


@pytest.mark.parametrize("field", ["rate", "max_connections"])
def test_null_is_read_from_file_or_variable(field: str, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    name, variable = f"server.{field}", f"TOCSIN_SERVER__{field.upper()}"
    assert shown(load())[name] is not None
    settings = load(write(f"server: {{ {field}: null }}"))
    assert (shown(settings)[name], origins(settings)[name]) == (None, str(write(f"server: {{ {field}: 7 }}")))
    monkeypatch.setenv(variable, "null")
    settings = load()
    assert (shown(settings)[name], origins(settings)[name]) == (None, variable)
    monkeypatch.delenv(variable)
    monkeypatch.setenv("TOCSIN_SERVER", f'{{"{field}": null}}')
    assert shown(load())[name] is None


def test_null_is_read_from_a_referenced_variable(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATE", "null")
    assert load(write("server: { rate: '${RATE}' }")).server.rate is None


def test_what_may_not_be_null_is_not(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(write("server:\nleader: { ttl: }\nroot:")) == Settings()
    monkeypatch.setenv("TOCSIN_SERVER__BURST", "null")
    with pytest.raises(SettingsError, match=r'`server\.burst` is "null": must be a valid integer'):
        load()


def test_file_is_named_by_option_variable_then_default(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("root: here")
    assert load().root == "here"
    monkeypatch.setenv("TOCSIN_CONFIG", str(write("root: named", "named.yaml")))
    assert load().root == "named"
    assert load(write("root: given", "given.yaml")).root == "given"


@pytest.mark.parametrize(
    ("text", "code", "field", "value", "hint"),
    [
        ("leader: { tll: 3s }", "unknown-field", "leader.tll", None, "`leader.ttl`"),
        ("nat: { url: x }", "unknown-field", "nat", None, "`nats`"),
        ("queues: { gpu: { transprt: mq } }", "unknown-field", "queues.gpu.transprt", None, "`queues.gpu.transport`"),
        ("leader: { ttl: 3x }", "invalid-value", "leader.ttl", '"3x"', "1h30m"),
        ("leader: { ttl: 1s }", "invalid-value", "leader", None, "`renew_interval`"),
        ("recovery: { treshold: 1m }", "unknown-field", "recovery.treshold", None, "`recovery.threshold`"),
        ("recovery: { max_age: 0s }", "invalid-value", "recovery.max_age", '"0s"', "0"),
        ("recovery: { max_attempts: -1 }", "invalid-value", "recovery.max_attempts", "-1", "0"),
        ("root: Not.One", "invalid-value", "root", '"Not.One"', ""),
        ("nats: { url: 'foo:99999' }", "invalid-value", "nats.url", '"foo:99999"', "nats://HOST:PORT"),
        ("nats: { url: 'nats://a:1,http://b' }", "invalid-value", "nats.url", '"nats://a:1,http://b"', "nats://"),
        ("server: { port: 99999 }", "invalid-value", "server.port", "99999", "65535"),
        ("archive: { target: 'gs://b' }", "invalid-value", "archive.target", '"gs://b"', "`nats`"),
        ("archive: { target: 's3://b' }", "invalid-value", "archive.target", '"s3://b"', "`s3://BUCKET/PREFIX`"),
        ("archive: { target: 's3://bucket/../x' }", "invalid-value", "archive.target", '"s3://bucket/../x"', "names"),
        ("archive: { s3: { access_key_id: a } }", "invalid-value", "archive.s3", None, "`secret_access_key`"),
        ("archive: { s3: { session_token: a } }", "invalid-value", "archive.s3", None, "`access_key_id`"),
        ("archive: { s3: { kms_key: a } }", "invalid-value", "archive.s3", None, "`encryption: aws:kms`"),
        (
            "archive: { s3: { storage_class: GLACIER } }",
            "invalid-value",
            "archive.s3.storage_class",
            '"GLACIER"',
            "once",
        ),
        (
            "archive: { s3: { endpoint: 'minio:9000' } }",
            "invalid-value",
            "archive.s3.endpoint",
            '"minio:9000"',
            "a URL",
        ),
        ("archive: { output: true, hot_window: 8d }", "invalid-value", "output", None, "a longer `output.max_age`"),
        ("heartbeat: { url: 'ftp://a' }", "invalid-value", "heartbeat.url", None, "URL of a monitor"),
        ("auth: { admin_token: short }", "invalid-value", "auth.admin_token", None, "openssl rand -hex 32"),
        (f"auth: {{ admin_token: '{'a ' * 20}' }}", "invalid-value", "auth.admin_token", None, "letters, digits"),
        ("heartbeat: { every: 1s }", "invalid-value", "heartbeat.every", "1.0", "10"),
        ("archive: { max_messages: 0 }", "invalid-value", "archive.max_messages", "0", "1"),
        ("nats: { url: '${NOT_SET}' }", "invalid-value", "nats.url", '"${NOT_SET}"', "`NOT_SET`"),
        ("queues: { q: { transport: mq, concurrency: 3 } }", "invalid-value", "queues.q", None, "transport: matched"),
        (
            "queues: { q: { transport: matched, rate: { limit: 3, burts: 1 } } }",
            "unknown-field",
            "queues.q.rate.burts",
            None,
            "`queues.q.rate.burst`",
        ),
        ("queues: { q: { transport: matched, rate: { limit: 0 } } }", "invalid-value", "queues.q.rate.limit", "0", "1"),
        ("queues: { q: { transport: pigeon } }", "invalid-value", "queues.q.transport", '"pigeon"', "'matched'"),
        ("[1, 2]", "invalid-value", "", None, "a list"),
        ("a: b: c", "invalid-value", "", None, "YAML"),
    ],
)
def test_invalid_setting_names_its_field_and_value(
    text: str, code: str, field: str, value: str | None, hint: str, write: Write
) -> None:
    with pytest.raises(SettingsError) as caught:
        load(write(text))
    [problem] = caught.value.problems
    assert (caught.value.code, problem.code) == ("invalid-settings", code)
    assert (problem.field, problem.value) == (field, value)
    assert hint in problem.reason


def test_all_invalid_settings_are_reported_together(write: Write) -> None:
    assert refusal("leader: { ttl: 3x }\nserver: { port: none }", write).count("\n") == 1


def test_overridden_reference_needs_no_variable(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_NATS_URL", "nats://set:1")
    assert load(write("nats: { url: '${NOT_SET}' }")).nats.url == "nats://set:1"


def test_a_literal_reference_is_written_with_two_dollars(write: Write) -> None:
    assert load(write("auth: { iam_url: 'a$${b}' }")).auth.iam_url == "a${b}"


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such file"):
        load(tmp_path / "missing.yaml")


def test_options_change_settings_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_NATS__USER", "of-the-environment")
    given = Settings(nats={"url": "nats://code:4222", "password": "p"}, replicas=3)  # type: ignore[arg-type]
    changed = with_options(given, {("nats", "url"): "nats://call:4222", ("worker", "shards"): ("a",), ("root",): None})
    assert (changed.nats.url, changed.nats.user, changed.replicas) == ("nats://call:4222", None, 3)
    assert (changed.nats.password, changed.worker.shards, given.nats.url) == (
        given.nats.password,
        ("a",),
        "nats://code:4222",
    )
    assert origins(changed)["nats.url"] == "command line"
    with pytest.raises(SettingsError, match="root"):
        with_options(given, {("root",): "a b"})


def test_options_keep_the_origins_of_settings(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("replicas: 3\nnats: { url: nats://file:4222, user: u }\n")
    changed = with_options(load(file), {("nats", "url"): "nats://call:4222"})
    found = origins(changed)
    assert [found[name] for name in ("replicas", "nats.user", "nats.url", "root")] == [
        str(file),
        str(file),
        "command line",
        "default",
    ]


def test_secrets_are_never_shown() -> None:
    settings = Settings.model_validate(
        {
            "nats": {"url": "nats://me:hunter2@a:1,nats://token@b:1,nats://c:1", "password": "hunter2"},
            "database": {"url": "postgresql://me:hunter2@db/x"},
            "heartbeat": {"url": "https://monitor.example.com/hunter2"},
            "auth": {"admin_token": "hunter2" * 5},
            "archive": {"s3": {"access_key_id": "a", "secret_access_key": "hunter2", "session_token": "hunter2"}},
        }
    )
    values = shown(settings)
    assert values["archive.s3.secret_access_key"] == values["archive.s3.session_token"] == MASK
    assert values["nats.password"] == values["heartbeat.url"] == values["auth.admin_token"] == MASK
    assert values["nats.url"] == f"nats://me:{MASK}@a:1,nats://{MASK}@b:1,nats://c:1"
    assert values["database.url"] == f"postgresql://me:{MASK}@db/x"
    assert "hunter2" not in str(values) + repr(settings.nats.password) + repr(
        (settings.heartbeat, settings.auth, settings.archive)
    )


def test_a_wrong_password_is_not_repeated(write: Write) -> None:
    assert "1234" not in refusal("nats: { password: [1234] }", write)


@pytest.mark.parametrize(
    "text",
    [
        "nats: { password: @hunter2 }",
        "nats:\n  password: hunter2: x",
        "a: !hunter2 x",
        "a: *hunter2",
        "a: !!int hunter2",
    ],
)
def test_fault_in_yaml_repeats_no_value(text: str, write: Write) -> None:
    refused = refusal(text, write)
    assert "not YAML" in refused
    assert "hunter2" not in refused


@pytest.mark.parametrize("text", ["mq_prefix: tocsin", "public_prefix: tocsin.cron", "root: cron"])
def test_no_prefix_is_inside_the_root(text: str, write: Write) -> None:
    with pytest.raises(SettingsError) as refused:
        load(write(text))
    fields = {problem.field for problem in refused.value.problems}
    assert fields == ({"public_prefix", "trigger_prefix"} if text == "root: cron" else {text.partition(":")[0]})


@pytest.mark.parametrize(
    ("text", "pages"),
    [
        ("", None),
        ("server: { public_url: 'https://tocsin.example.com' }", "https://tocsin.example.com/console"),
        ("server: { public_url: 'https://tocsin.example.com', console: false }", None),
        (
            "{ server: { public_url: 'https://a.example.com' }, notifications: { public_url: 'https://b.example.com' } }",
            "https://b.example.com",
        ),
    ],
)
def test_notifications_link_to_the_console(text: str, pages: str | None, write: Write) -> None:
    assert load(write(text)).linked_pages == pages
