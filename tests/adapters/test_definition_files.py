"""Definitions from files, folders and standard input, and errors with file and line."""

import io
import json
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tocsin.adapters.files import load, yaml_text
from tocsin.adapters.files.definition_files import MAX_FILE_BYTES
from tocsin.domain.definition import DefinitionError, DefinitionProblem

EXAMPLES = Path(__file__).parents[2] / "examples"


def names(*sources: str | Path, stdin: str = "") -> list[str]:
    return [definition.name for definition in load(*sources, stdin=io.StringIO(stdin))]


def problems(*sources: str | Path, stdin: str = "") -> list[DefinitionProblem]:
    with pytest.raises(DefinitionError) as error:
        load(*sources, stdin=io.StringIO(stdin))
    return list(error.value.problems)


def test_registry_of_hip_62_loads() -> None:
    assert names(EXAMPLES / "jobs.yaml") == [
        "provider-health-check",
        "credit-reconciliation",
        "cache-warm-embeddings",
        "nightly-benchmark",
        "daily-analytics-etl",
        "model-drift-check",
    ]


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_example_is_read(name: str) -> None:
    assert names(EXAMPLES / name)


def test_demo_has_same_jobs_and_two_more() -> None:
    demo = {definition.name: definition for definition in load(EXAMPLES / "demo.yaml")}
    for original in load(EXAMPLES / "jobs.yaml"):
        same = demo.pop(original.name)
        assert [step.function for step in same.steps()] == [step.function for step in original.steps()]
        assert (same.tags, same.overlap_policy, same.timezone) == (
            original.tags,
            original.overlap_policy,
            original.timezone,
        )
    assert list(demo) == ["broken-analytics-etl", "slow-report"]


def test_demo_worker_has_every_function() -> None:
    worker = (EXAMPLES / "demo_worker.py").read_text()
    functions = {step.function for definition in load(EXAMPLES / "demo.yaml") for step in definition.steps()}
    assert {function for function in functions if f'@worker.task("{function}")' not in worker} == set()


def test_ojs_cron_examples_load() -> None:
    assert names(EXAMPLES / "ojs") == ["external-data-sync", "monthly-billing", "weekday-morning-report"]


A = "name: a\nfunction: f\n"
B = '{"name": "b", "cron": "@daily", "type": "x.y"}'


def test_folder_is_searched_recursively_without_hidden_files(tmp_path: Path) -> None:
    (tmp_path / "z").mkdir()
    (tmp_path / "..data").mkdir()
    (tmp_path / "z" / "b.json").write_text(B)
    (tmp_path / "a.YML").write_text(A)
    (tmp_path / "..data" / "a.yaml").write_text(A)
    (tmp_path / "notes.txt").write_text("not a job")
    assert names(tmp_path) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "name"), [(A, "a"), (B, "b"), ("{name: c, function: f}", "c"), ("[{name: d, function: f}]", "d")]
)
def test_standard_input_is_yaml_or_json(text: str, name: str) -> None:
    assert names("-", stdin=text) == [name]


def test_several_sources_and_documents_load_in_order(tmp_path: Path) -> None:
    (tmp_path / "many.yaml").write_text(f"{A}---\n{A.replace('a', 'c', 1).replace('ncme: a', 'name: c')}")
    (tmp_path / "b.json").write_text("\ufeff" + B)
    assert names(tmp_path / "many.yaml", str(tmp_path / "b.json")) == ["a", "c", "b"]


def test_name_in_two_files_is_reported(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(A)
    (tmp_path / "two.yaml").write_text(A)
    [problem] = problems(tmp_path)
    assert (problem.code, problem.job) == ("duplicate-name", "job `a`")
    assert all(f"{tmp_path}/{name}.yaml" in problem.reason for name in ("one", "two"))


def test_all_problems_of_all_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(A + "timeout: soon\n")
    (tmp_path / "b.json").write_text("{,}")
    (tmp_path / "c.yaml").write_bytes(b"name: \xff")
    (tmp_path / "d.yaml").write_text("")
    (tmp_path / "e.yaml").write_text(f"{A}---\nname: B\nfunction: f\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "f.yaml").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    found = problems(tmp_path, tmp_path / "missing.yaml", tmp_path / "empty")
    assert [
        (str(problem.source).removeprefix(f"{tmp_path}/"), problem.job, problem.field, problem.value, problem.code)
        for problem in found
    ] == [
        ("a.yaml", "job `a`", "timeout", '"soon"', "invalid-duration"),
        ("b.json:1", None, "", None, "invalid-json"),
        ("c.yaml", None, "", None, "not-utf8"),
        ("d.yaml", None, "", None, "empty-document"),
        ("e.yaml, document 2", "job `B`", "name", '"B"', "invalid-value"),
        ("f.yaml", None, "", None, "file-too-large"),
        ("missing.yaml", None, "", None, "file-not-found"),
        ("empty", None, "", None, "no-job-files"),
    ]
    assert "column 2" in found[1].reason
    assert "byte 7" in found[2].reason


@pytest.mark.parametrize(
    ("text", "field", "code"),
    [
        ('{"name": "a", "type": "x.y", "type": "x.z"}', "type", "duplicate-key"),
        ('{"args": [NaN]}', "NaN", "invalid-number"),
        ('{"args": [' + "9" * 5_000 + "]}", "", "invalid-number"),
        ("[" * 100_000, "", "nested-too-deep"),
    ],
)
def test_json_is_parsed_strictly(text: str, field: str, code: str) -> None:
    [problem] = problems("-", stdin=text)
    assert (problem.source, problem.field, problem.code) == ("standard input", field, code)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[on, off, yes, no, y, n]", ["on", "off", "yes", "no", "y", "n"]),
        ("[true, True, FALSE]", [True, True, False]),
        ("[1:30, 12:30:00, 2026-01-01]", ["1:30", "12:30:00", "2026-01-01"]),
        ("[010, 0o10, 0x1f, -3, 1_000]", [10, 8, 31, -3, "1_000"]),
        ("[1.5, .5, 1e3, -1.]", [1.5, 0.5, 1000.0, -1.0]),
        ("[~, null, ]", [None, None]),
        ("a:", {"a": None}),
        ("on: 1", {"on": 1}),
        ("a: &x {p: 1, q: 2}\nb:\n  <<: *x\n  p: 3", {"a": {"p": 1, "q": 2}, "b": {"p": 3, "q": 2}}),
        ("schedule: 0 0 * * 5#3", {"schedule": "0 0 * * 5#3"}),
    ],
)
def test_yaml_scalars_follow_the_core_schema(text: str, value: object) -> None:
    assert yaml_text.parse(text) == [value]


@pytest.mark.parametrize(
    ("text", "place", "code", "hint"),
    [
        ("name: a\nschedule: @daily", ":2:11", "unquoted-value", 'schedule: "@daily"'),
        (
            "jobs:\n  - name: a\n    schedule: */5 * * * *  # often",
            ":3:16",
            "unquoted-value",
            'schedule: "*/5 * * * *"',
        ),
        ("- {name: a, schedule: @daily, tags: []}", ":1:23", "unquoted-value", 'schedule: "@daily"'),
        ("schedule: * * * * 5#3", ":1:12", "unquoted-value", 'schedule: "* * * * 5#3"'),
        ("input: { token: ${env:TOKEN} }", ":1:18", "unquoted-value", '"${env:TOKEN}"'),
        ("name: a\nfunction: f\nname: b", ":3:1", "duplicate-key", "1"),
        ("a:\n\tb: 1", ":2:1", "tab-indentation", ""),
        ("description: what: this", ":1:18", "unquoted-value", "`: `"),
        ("a: !!python/object:os.system x", ":1:4", "unsupported-tag", ""),
        ("a: !!binary x", ":1:4", "unsupported-tag", ""),
        ("a: !!int x", ":1:4", "invalid-number", "whole number"),
        ("a: !!bool x", "", "invalid-tag-value", "`!!bool`"),
        ("a: " + "9" * 5000, ":1:4", "invalid-number", "4300"),
        ("a: 1\nb: \x01", ":2:4", "control-character", "U+0001"),
        ("? [a]\n: b", ":1:3", "invalid-key", ""),
        ("[" * 10_000, "", "nested-too-deep", ""),
        ('a: "never\nb: 1\nc: 2', ":1:4", "unclosed-quote", ""),
        ("a: [1", ":1:6", "unclosed-bracket", "`[`"),
        ("a:\n  - x\n b: 1", ":3:2", "wrong-indentation", ""),
        ("a: *b", ":1:4", "unquoted-value", 'a: "*…"'),
        ("a: b\nc", ":2:2", "invalid-yaml", ""),
    ],
)
def test_yaml_error_names_place_and_correction(text: str, place: str, code: str, hint: str) -> None:
    [problem] = problems("-", stdin=text)
    assert (problem.source, problem.code) == (f"standard input{place}", code)
    assert hint in problem.reason


@pytest.mark.parametrize(
    "text",
    [
        "password: @secret",
        "password: %secret # of the account",
        "- *secret",
        "input: { token: ${secret }",
        "input: { token: ${env:a secret} }",
        "password: !!int secret",
        "password: !!float secret",
        "password: !!bool secret",
        "password: !secret x",
        "a: [*b, *secret]",
        "a: [&secret x, &secret y, *z]",
        "password: secret: x",
        "%TAG !secret! x\n%TAG !secret! y\n---\na: 1",
        "a: !secret!b x",
    ],
)
def test_yaml_error_holds_no_value(text: str) -> None:
    with pytest.raises(DefinitionError) as raised:
        load("-", stdin=io.StringIO(text))
    assert "secret" not in str(raised.value)


def test_repeated_yaml_key_is_named() -> None:
    [problem] = problems("-", stdin="name: a\nfunction: f\nname: b")
    assert problem.field == "name"


def test_every_mistake_of_a_definition_is_listed() -> None:
    text = "name: a\nfunction: f\ntimezone: Mars\ntimeout: soon\nretries: 3\noverlap: maybe\n"
    with pytest.raises(DefinitionError) as raised:
        load("-", stdin=io.StringIO(text))
    assert {problem.field for problem in raised.value.problems} >= {"timezone", "timeout", "retries", "overlap_policy"}


@pytest.mark.parametrize("envelope", ["{}", "jobs: [{}]"])
def test_kubernetes_manifest_is_one_problem(tmp_path: Path, envelope: str) -> None:
    manifest = "{apiVersion: batch/v1, kind: CronJob, metadata: {name: hello}, spec: {schedule: '* * * * *'}}"
    (tmp_path / "cron.yaml").write_text(envelope.replace("{}", manifest))
    with pytest.raises(DefinitionError) as caught:
        load(tmp_path / "cron.yaml")
    assert [problem.code for problem in caught.value.problems] == ["kubernetes-manifest"]


def test_merge_keys_do_not_multiply() -> None:
    bomb = "a0: &a0 { x: 1 }\n" + "".join(f"a{n}: &a{n} {{ <<: [*a{n - 1}, *a{n - 1}] }}\n" for n in range(1, 26))
    assert yaml_text.parse(bomb) == [{f"a{n}": {"x": 1} for n in range(26)}]
    many = ", ".join(f"k{n}: {n}" for n in range(1_000))
    with pytest.raises(DefinitionError) as caught:
        yaml_text.parse(f"base: &base {{ {many} }}\n" + "".join(f"m{n}: {{ <<: *base }}\n" for n in range(501)))
    (problem,) = caught.value.problems
    assert (problem.code, problem.source) == ("too-large", ":502:7")
    with pytest.raises(DefinitionError, match="nested too deep"):
        yaml_text.parse("a: &a { <<: *a }\n")
    (shared,) = yaml_text.parse(
        "a: &a { x: 1, y: 1 }\nb: &b { <<: *a, y: 2 }\nc: [{ <<: *b }, { <<: [*b, *a], z: 3 }]\n"
    )
    first = yaml_text.parse("a: &a {k: 1, o: 1}\nb: &b {k: 2}\nc: {<<: [*a, *b], o: 3}\n")
    assert first == [{"a": {"k": 1, "o": 1}, "b": {"k": 2}, "c": {"k": 1, "o": 3}}]
    assert shared == {"a": {"x": 1, "y": 1}, "b": {"x": 1, "y": 2}, "c": [{"x": 1, "y": 2}, {"x": 1, "y": 2, "z": 3}]}


def test_alias_expansion_is_bounded() -> None:
    levels = "\n".join(f"  x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9) if n else 'ha'}]" for n in range(12))
    (problem,) = problems("-", stdin=f"name: a\nfunction: f\ninput:\n{levels}\n")
    assert (problem.source, problem.job, problem.field, problem.value, problem.code) == (
        "standard input",
        "job `a`",
        "input",
        "a mapping",
        "invalid-value",
    )


@given(st.text())
def test_any_text_loads_or_raises_definition_error(text: str) -> None:
    with suppress(DefinitionError):
        load("-", stdin=io.StringIO(text))


TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    st.from_regex(r"[-+]?[0-9._:eExXoOa-f]{1,8}", fullmatch=True),
    st.sampled_from(
        ["yes", "on", "~", "", "null", "<<", "=", "- a", "a: b", "# a", " a ", "a\n", "\ta", "2026-01-01", ".inf"]
    ),
)
NUMBERS = st.one_of(st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False))
PLAIN_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)


@given(PLAIN_JSON)
@example({"\x85": None, "key": "one\u2028two\u2029", "list": ["\x85"]})
def test_what_is_written_is_read_back(value: object) -> None:
    (read,) = yaml_text.parse(yaml_text.dump(value))
    assert json.dumps(read) == json.dumps(value), "1 and 1.0 and true differ"


@given(PLAIN_JSON)
def test_other_parsers_of_yaml_read_the_same(value: object) -> None:
    assert json.dumps(yaml.safe_load(yaml_text.dump(value))) == json.dumps(value)
