"""A comparison with a commit runs both sides in turn and computes its table honestly.

The figures are given by the tests, except in one test, which measures the smallest sizes and checks no time.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from benchmarks.__main__ import arguments
from benchmarks.against import command, pairs, sides, table
from benchmarks.against.medians import Spread, spread
from benchmarks.against.pairs import NotRunError, Run, Runs, Step, steps
from benchmarks.against.sides import Side, SideError
from benchmarks.against.sizes import FULL, TINY
from benchmarks.against.targets import (
    DEFAULT,
    GRAPH,
    UNITS,
    W2,
    W3,
    W5,
    W5_S2,
    WORKLOADS,
    Row,
    Target,
    Unit,
    metric,
    rows,
)
from benchmarks.metrics import Metrics

RATE = Row("rate", W2, metric("rate"), "/s", "base", Target(2.5, at_least=True), ("missed",))
AHEAD = replace(RATE, other="taskiq", target=Target(1, at_least=True))
SECONDS = Row("seconds", GRAPH, metric("s"), "s", None, Target(10))
PYPROJECT = '[project]\nname = "x"\nversion = "1"\ndependencies = ["pytest>={lowest}"]\n'


def _runs(unit: Unit, system: str, *metrics: Metrics | str) -> Runs:
    """Return one run per pair: its metrics, or the reason why it has none."""
    both = enumerate(metrics, start=1)
    return Runs([_run(pair, unit, system, given) for pair, given in both])


def _run(pair: int, unit: Unit, system: str, given: Metrics | str) -> Run:
    if isinstance(given, str):
        return Run(pair, unit.title, system, reason=given)
    return Run(pair, unit.title, system, given)


def _rates(system: str, *rates: float | str) -> Runs:
    return _runs(W2, system, *(rate if isinstance(rate, str) else {"rate": rate} for rate in rates))


def _line(row: Row, *parts: Runs) -> table.Line:
    [line] = table.lines([row], Runs([run for part in parts for run in part.runs]))
    return line


def test_interval_of_ten_leaves_out_both_extremes() -> None:
    found = spread([9, 1, 2, 3, 4, 5, 6, 7, 8, 1000])
    assert found == Spread(5.5, 2, 9, 10, 1 - 22 / 1024)


@pytest.mark.parametrize(("number", "confidence"), [(1, 0.0), (2, 0.5), (5, 0.9375), (6, 0.96875)])
def test_interval_of_few_values_is_their_range(number: int, confidence: float) -> None:
    found = spread(list(range(number)))
    assert (found.low, found.high, found.confidence) == (0, number - 1, confidence)


@pytest.mark.parametrize("number", range(1, 7))
def test_confidence_counts_the_samples_around_the_median(number: int) -> None:
    """Every sample of values below (0) and above (1) the true median is equally likely."""
    samples = list(product((0, 1), repeat=number))
    around = sum(0 in sample and 1 in sample for sample in samples)
    assert spread(list(range(number))).confidence == pytest.approx(around / len(samples))


def test_median_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="there are no values"):
        spread([])


def test_ratio_is_of_pairs_and_not_of_medians() -> None:
    line = _line(RATE, _rates("base", 1, 10, 100), _rates("new", 3, 20, 500))
    assert line.compared == Spread(3, 2, 5, 3, 0.75)
    assert (line.new, line.other) == (Spread(20, 3, 500, 3, 0.75), Spread(10, 1, 100, 3, 0.75))
    assert (line.verdict, line.remark) == (table.MET, "")


@pytest.mark.parametrize(("rate", "verdict"), [(249, table.MISSED), (250, table.MET)])
def test_lower_limit_belongs_to_the_target(rate: float, verdict: str) -> None:
    assert _line(RATE, _rates("base", 100), _rates("new", rate)).verdict == verdict


@pytest.mark.parametrize(("seconds", "verdict"), [(10.1, table.MISSED), (10, table.MET)])
def test_figure_alone_is_compared_with_its_limit(seconds: float, verdict: str) -> None:
    line = _line(SECONDS, _runs(GRAPH, "new", {"s": seconds}), _runs(GRAPH, "base", "0 of 1 completed within 60 s"))
    assert (line.verdict, line.remark) == (verdict, "base: 0 of 1 completed within 60 s")


def test_missed_job_misses_the_target() -> None:
    new = _runs(W2, "new", {"rate": 900.0, "missed": 0.0}, {"rate": 900.0, "missed": 2.0})
    line = _line(RATE, _rates("base", 100, 100), new)
    assert (line.verdict, line.remark) == (table.MISSED, "missed: 2")


def test_missing_side_is_not_run_and_says_why() -> None:
    line = _line(RATE, _rates("base", "TimeoutError: 3 of 20,000", "TimeoutError: 3 of 20,000"), _rates("new", 1, 2))
    assert (line.verdict, line.remark) == (table.NOT_RUN, "base: TimeoutError: 3 of 20,000")
    assert line.new is not None
    assert _line(RATE).remark == "not measured"


def test_pair_without_one_side_is_left_out() -> None:
    line = _line(RATE, _rates("base", 100, "it broke", 100), _rates("new", 300, 900, 300))
    assert (line.compared, line.remark) == (Spread(3, 3, 3, 2, 0.5), "base: it broke (1 of 3)")


def test_missing_metric_of_a_side_is_named() -> None:
    line = _line(RATE, _runs(W2, "base", {"other": 1.0}), _rates("new", 1))
    assert (line.verdict, line.remark) == (table.NOT_RUN, "base: no metric 'rate'")


def test_table_shows_figures_of_both_sides() -> None:
    runs = Runs(
        [*_rates("base", 100).runs, *_rates("new", 300).runs, *_rates("taskiq", "taskiq is not installed").runs]
    )
    shown = table.text(table.lines([RATE, AHEAD, SECONDS], runs), {}).splitlines()
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in shown[1:4]]
    assert cells == [
        ["rate", "≥ 2.5 of base", "3.00×", "3.00–3.00 (0%)", "300 /s", "100 /s base", "1", "met"],
        ["rate", "≥ 1 of taskiq", "-", "-", "300 /s", "-", "0", "not run: taskiq: taskiq is not installed"],
        ["seconds", "≤ 10", "-", "-", "-", "-", "0", "not run: not measured"],
    ]


def test_peer_has_its_version_in_the_table() -> None:
    filled = table.lines([AHEAD], Runs([*_rates("taskiq", 200).runs, *_rates("new", 300).runs]))
    assert "200 /s taskiq 0.13" in table.text(filled, {"taskiq": "0.13"})


def test_json_holds_rows_and_every_measurement() -> None:
    runs = Runs([*_rates("base", 100).runs, *_rates("new", 300, "it broke").runs], {"taskiq": "0.13"})
    written = json.loads(json.dumps(table.as_json(table.lines([RATE], runs), runs)))
    assert written["rows"][0]["compared"]["median"] == 3
    assert written["rows"][0]["result"] == "met"
    assert [run["reason"] for run in written["measurements"]] == ["", "", "it broke"]
    assert written["peers"] == {"taskiq": "0.13"}


@pytest.mark.parametrize(
    ("parts", "check", "code"),
    [
        ((_rates("base", 100), _rates("new", 300)), True, 0),
        ((_rates("base", 100), _rates("new", 200)), False, 0),
        ((_rates("base", 100), _rates("new", 200)), True, 1),
        ((_rates("base", 100), _rates("new", "it broke")), False, 1),
        ((_rates("base", "it broke"), _rates("new", 300)), False, 0),
        ((_rates("base", "it broke"), _rates("new", 300)), True, 1),
    ],
)
def test_exit_code_needs_every_figure_of_the_tree(parts: tuple[Runs, Runs], check: bool, code: int) -> None:  # noqa: FBT001 - a table
    runs = Runs([run for part in parts for run in part.runs])
    assert command.exit_code(table.lines([RATE], runs), runs, check=check) == code


def test_absent_peer_leaves_the_exit_code_alone() -> None:
    runs = Runs([*_rates("new", 300).runs, *_rates("taskiq", "it is not installed").runs])
    assert command.exit_code(table.lines([AHEAD], runs), runs, check=True) == 0


def test_every_unit_fills_a_row() -> None:
    assert {row.unit for row in rows(FULL) if not row.unit.suite} == set(UNITS)
    assert {row.unit.selector for row in rows(FULL)} == set(WORKLOADS)
    assert [row.unit for row in rows(FULL, ["W3"])] == [W3, W3]
    assert {row.unit.sync_always for row in rows(FULL, profiles=(False,))} == {False}
    assert {row.unit for row in rows(FULL, profiles=(True,))} == {unit for unit in UNITS if unit.sync_always}


def test_each_target_of_the_matcher_has_a_figure() -> None:
    every = rows(FULL, ["matcher"], profiles=(False,))
    targets = {row.title: str(row.target or "") for row in every}
    numbers = "1 function", "10 functions", "100 functions", "300 functions"
    assert targets == {
        **{f"matcher W2, {number}: rate": "≥ 0.95" for number in numbers},
        **{f"matcher W2, {number}: CPU per execution": "≤ 1.1" for number in numbers},
        "matcher W3: p50, more than base": "≤ 0.5",
        "matcher W3, R3: p50, more than base": "≤ 0",
        "matcher W1, 1,000 jobs: p99": "≤ 1.1",
        "matcher W1, 10,000 jobs: p99": "≤ 1.1",
        "matcher unserved, 50,000 tasks: p99 of others, without = 1": "≤ 2",
        "matcher unserved, 100,000 tasks: start to first handler": "≤ 3",
        "matcher unserved, 100,000 tasks: the same without tasks": "",
        "matcher unserved, 100,000 tasks: added by the tasks": "",
    }
    assert len({row.unit.title for row in every}) == len({row.unit for row in every}) == 9
    assert not [row for row in rows(FULL, DEFAULT) if row.unit.suite]


def test_difference_is_of_pairs() -> None:
    row = Row("p50", W3, metric("p50_ms"), "ms", "base", Target(0.5), is_difference=True)
    base = _runs(W3, "base", {"p50_ms": 4.0}, {"p50_ms": 5.0}, {"p50_ms": 6.0})
    line = _line(row, base, _runs(W3, "new", {"p50_ms": 4.4}, {"p50_ms": 5.5}, {"p50_ms": 5.0}))
    assert (line.verdict, line.compared and round(line.compared.median, 6)) == (table.MET, 0.4)
    shown = table.text([line], {}).splitlines()[1]
    assert ("≤ 0.5 more than base" in shown, "0.40 ms" in shown, "×" in shown) == (True, True, False)


def test_registered_jobs_have_limits_from_a_million() -> None:
    assert [row.target for row in rows(FULL, ["W6"])] == [None, None]
    assert [row.target for row in rows(replace(FULL, jobs=1_000_000), ["W6"])] == [None, None, Target(20), Target(700)]


def test_memory_per_execution_is_what_was_added() -> None:
    [row] = [row for row in rows(FULL) if row.unit == W5 and row.of == "B"]
    held = {"nats_memory_mb (0 before)": 100.0, "nats_memory_mb (1,000,000 before)": 2_600.0}
    assert row.value(held) == 2_500


def test_sides_take_turns_and_peers_follow() -> None:
    only_s2 = Row("s2", W5_S2, metric("m"), "B", None)
    order = steps([RATE, AHEAD, only_s2], lambda unit: 1 if unit == W5_S2 else 2)
    assert [(step.pair, step.unit.title, step.system) for step in order] == [
        (1, "W2", "base"), (1, "W2", "new"), (1, "W2", "taskiq"),
        (1, "W5 s2", "new"),
        (2, "W2", "new"), (2, "W2", "base"), (2, "W2", "taskiq"),
    ]  # fmt: skip


def test_system_that_fails_twice_is_left_out() -> None:
    called = list[str]()

    def fails(_: Unit) -> Metrics:
        called.append("base")
        raise NotRunError("it broke")

    runs = Runs()
    order = [Step(pair, W2, system) for pair in range(1, 5) for system in ("base", "new", "unknown")]
    pairs.measure(iter(order), {"base": fails, "new": lambda _: {"rate": 1.0}}, runs, lambda _: None)
    assert called == ["base", "base"]
    assert [run.system for run in runs.runs] == ["base", "new", "base", "new", "new", "new"]


def test_reason_is_the_last_error_of_the_log() -> None:
    log = "Traceback (most recent call last):\nTimeoutError: 3 of 20 completed\nclosing: ConnectionError\n\n"
    assert pairs.last_error(log) == "TimeoutError: 3 of 20 completed"
    assert pairs.last_error("Killed\n") == "Killed"
    assert pairs.last_error("") == ""


def test_program_that_fails_gives_its_error(tmp_path: Path) -> None:
    (tmp_path / "benchmarks" / "against").mkdir(parents=True)
    (tmp_path / pairs.PROGRAM).write_text("raise ValueError('no such workload')\n")
    which = Side("new", "abc", tmp_path)
    with pytest.raises(NotRunError, match=r"^ValueError: no such workload$"):
        pairs.side(which, which, TINY, tmp_path)(W2)


def _repository(root: Path, *, lowest: str = "1") -> None:
    git = partial(subprocess.run, check=True, capture_output=True, cwd=root)
    git(["git", "init", "-q"])
    (root / "pyproject.toml").write_text(PYPROJECT.format(lowest=lowest))
    (root / ".gitignore").write_text("ignored\n")
    git(["git", "add", "."])
    git(["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-q", "-m", "x"])


def test_sides_hold_the_commit_and_the_working_tree(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    root.mkdir()
    _repository(root)
    for name in ("added", "ignored"):
        (root / name).write_text("x")
    base, new = sides.base("HEAD", tmp_path, root=root), sides.new(tmp_path, root=root)
    assert {path.name for path in base.folder.iterdir()} == {"pyproject.toml", ".gitignore"}
    assert {path.name for path in new.folder.iterdir()} == {"pyproject.toml", ".gitignore", "added"}
    assert new.commit == f"{base.commit} with changes"
    assert base.environment()["PYTHONPATH"] == f"{tmp_path / 'base'}:{tmp_path / 'base' / 'src'}"


def test_unknown_commit_is_refused(tmp_path: Path) -> None:
    _repository(tmp_path)
    with pytest.raises(SideError, match="Needed a single revision"):
        sides.base("no-such-commit", tmp_path / "sides", root=tmp_path)


def test_unmet_requirements_are_named() -> None:
    project = {
        "project": {
            "dependencies": ["pytest>=1", "pytest<1", "never-published-anywhere", "absent; sys_platform == 'plan9'"],
            "optional-dependencies": {"server": ["pytest<2"], "docs": ["pytest<3"]},
        }
    }
    named = [problem.partition(",")[0] for problem in sides.unmet(project)]
    assert named == ["pytest<1", "never-published-anywhere is not installed", "pytest<2"]


def test_base_whose_environment_fails_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "repository"
    root.mkdir()
    _repository(root, lowest="9999")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SideError, match=r"^its environment cannot be made: /bin/false -m venv"):
        sides.base("HEAD", tmp_path, root=root)


def test_command_line_selects_workloads_of_a_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    assert arguments(["--against", "HEAD"]).workloads == list(DEFAULT)
    assert arguments(["W2", "--against", "HEAD", "--pairs", "3"]).pairs == 3
    for line in ("--against HEAD W7", "--against HEAD --pairs 0"):
        with pytest.raises(SystemExit):
            arguments(line.split())
    assert "no workload is called W7" in capsys.readouterr().err


@pytest.mark.parametrize("interrupted", [False, True])
def test_results_are_printed_and_kept(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    interrupted: bool,  # noqa: FBT001 - a table
) -> None:
    def side(which: Side, *_: object) -> pairs.Measure:
        def measure(_: Unit) -> Metrics:
            if which.name == "new" and interrupted:
                raise KeyboardInterrupt
            fast = 1.0 if which.name == "new" else 4.0
            return {"p50_ms": fast, "p99_ms": 2 * fast, pairs.LOAD: 2.0}

        return measure

    monkeypatch.setattr(sides, "base", lambda *_: Side("base", "abc", tmp_path))
    monkeypatch.setattr(sides, "new", lambda *_: Side("new", "def", tmp_path))
    monkeypatch.setattr(pairs, "side", side)
    file = tmp_path / "figures.json"
    line = ["W3", "--against", "abc", "--pairs", "2", "--check", "--json", str(file)]
    assert command.compare(arguments(line)) == interrupted
    verdicts = [row["result"] for row in json.loads(file.read_text())["rows"]]
    assert verdicts == ["not run", "not run"] if interrupted else ["met", "met"]
    shown = capsys.readouterr()
    assert ("interrupted" in shown.err) == interrupted
    assert "Load average, median: base 2.00" in shown.out


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_program_gives_every_figure_of_a_row(tmp_path: Path) -> None:
    """The working tree is both sides here; each workload that is short enough gives its rows a value."""
    which = sides.new(tmp_path)
    sizes = replace(TINY, lag=(2, 4), executions=20, latency=3, steps=3, functions=(1, 3), tasks=(20, 30))
    measure = pairs.side(which, which, sizes, tmp_path)
    measured = rows(sizes, ["W2", "graph", "matcher"])
    units = dict.fromkeys(row.unit for row in measured)
    found: Mapping[str, Metrics] = {unit.title: measure(unit) for unit in units}
    assert min(row.value(found[row.unit.title]) for row in measured if "added" not in row.title) > 0
    assert found["W2"]["audit_failed"] == 0
    assert found["graph"]["executions_beside"] >= 1
