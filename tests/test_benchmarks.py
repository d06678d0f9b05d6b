"""The benchmarks measure, print and draw, and a failure does not stop the others.

Workloads run on real servers at the smallest size. The tests check the counts and never the times.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from benchmarks import bare, charts, comparison, plots, traces
from benchmarks import system as a_system
from benchmarks.__main__ import arguments, main
from benchmarks.client_cost import client_cost
from benchmarks.comparison import HEADLINES, Row
from benchmarks.conditions import Conditions
from benchmarks.fan_out import fan_out
from benchmarks.fire_lag import fire_lag
from benchmarks.growth import growth
from benchmarks.held import held
from benchmarks.latency import latency
from benchmarks.metrics import Metrics, Results, labelled, percentiles
from benchmarks.neighbors import neighbors, waiting_list
from benchmarks.part import FUNCTION, FUNCTIONS
from benchmarks.peers import PEERS, measurement
from benchmarks.peers.peer import peer
from benchmarks.plots import Bar, Chart, Mark
from benchmarks.registered import registered
from benchmarks.replay import replay
from benchmarks.responsiveness import ATTACKS, figures
from benchmarks.scale_out import matcher, scale_out
from benchmarks.seed import fill
from benchmarks.servers import initialized, servers
from benchmarks.system import system
from benchmarks.throughput import graphs, throughput
from benchmarks.unserved import restart, unserved
from benchmarks.wide_graph import wide_graph
from benchmarks.workloads import WORKLOADS

from tests.stored_events import StoredEvents
from tocsin.domain.events import Dispatched, Queued
from tocsin.services.agents import AgentRegistry
from tocsin.subjects import Stream

LIBRARIES = ("apscheduler", "arq", "celery", "dbos", "kombu", "procrastinate", "taskiq", "taskiq_nats")
RESULTS: Results = {
    "W2": {"executions_per_second": 1000.0, "bare_rate": 9.0},
    "W2 durable": {"executions_per_second": 250.0},
    "W2 arq": {"executions_per_second": 500.0},
    "W2 taskiq": {"executions_per_second": 2000.0},
    "W1 dbos": {"p99_ms (1,000)": 8900.0, "missed (1,000)": 3.0, "twice (1,000)": 0.0},
}
DRAWN: Results = {
    "W1": {"p50_ms (1,000)": 400.0, "p99_ms (1,000)": 900.0, "missed (1,000)": 0.0},
    "W1 durable": {"p99_ms (10,000)": 7000.0},
    "W2": {"executions_per_second": 1000.0, "bare_rate": 9000.0},
    "W2d durable": {"executions_per_second": 50.0, "bare_rate": 900.0},
    "W4": {
        "executions_per_second (2 copies)": 800.0,
        "cpu_ms_per_execution (2 copies)": 10.0,
        "cpu_ms_per_execution (2 copies, nats)": 1.0,
        "cpu_ms_per_execution (2 copies, 1: stages)": 2.0,
        "cpu_ms_per_execution (2 copies, 2: stages)": 3.0,
        "cpu_ms_per_execution (2 copies, 3: recorder)": 4.0,
    },
    "W4-R3 durable": {
        "executions_per_second (1 copy)": 80.0,
        "cpu_ms_per_execution (1 copy)": 8.0,
        "cpu_ms_per_execution (1 copy, nats node-1)": 1.0,
        "cpu_ms_per_execution (1 copy, nats node-2)": 5.0,
        "cpu_ms_per_execution (1 copy, 1: stages)": 2.0,
    },
    "W5 durable": {"executions_per_second (0 before)": 100.0, "executions_per_second (50 before)": 80.0},
}
SVG = "{http://www.w3.org/2000/svg}"


def test_all_peers_are_measured_unless_some_are_named() -> None:
    assert arguments(["W2"]).peers == ()
    assert arguments(["W2", "--peers"]).peers == PEERS
    assert arguments(["W2", "--peers", "celery,arq"]).peers == ("celery", "arq")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("W2 --peers cron", "no peer is called cron: there are apscheduler, arq, "),
        ("--peers W2", "no peer is called W2"),
        ("W5 --peers", "peers are measured in W1, W2, W3, and none of these was selected"),
        ("W5 --sizes 10,ten", "'10,ten': use numbers of executions in ascending order"),
        ("W5 --sizes 10,0", "'10,0': use numbers of executions in ascending order"),
        ("W99", "no workload is called W99: there are W1, "),
    ],
)
def test_wrong_command_line_is_refused(line: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(line.split())
    assert expected in re.sub(r"\s+", " ", capsys.readouterr().err)


def test_table_lists_tocsin_then_peers_by_rank() -> None:
    rows = comparison.rows("W2", RESULTS, {"arq": "0.28", "taskiq": "0.13"}, {"dbos": "dbos is not installed"})
    assert [(row.system, row.figure) for row in rows] == [
        ("tocsin", 1000.0),
        ("tocsin durable", 250.0),
        ("taskiq 0.13", 2000.0),
        ("arq 0.28", 500.0),
        ("dbos", None),
    ]
    lines = comparison.table("W2", rows).splitlines()
    assert [re.split(r"\s{2,}", line)[1:] for line in lines[2:]] == [
        ["1,000 /s", "1.00×"],
        ["250 /s", "0.25×"],
        ["2,000 /s", "2.00×", "stores no completion but the acknowledgement"],
        ["500 /s", "0.50×"],
        ["-", "-", "not measured: dbos is not installed"],
    ]


def test_missed_jobs_stand_beside_the_lag_without_ratio() -> None:
    rows = comparison.rows("W1", RESULTS, {"dbos": "3.4"}, {})
    assert rows == [Row("dbos 3.4", 8900.0, "3 missed")]
    assert "-  3 missed" in comparison.table("W1", rows)


def test_chart_has_a_bar_per_figure_and_mark() -> None:
    rows = [Row("tocsin", 10.0), Row("a <peer> & more", 40.0), Row("absent", None, "not measured")]
    drawn = ET.fromstring(plots.svg(charts.peers("W1", rows)))  # noqa: S314 - we wrote it
    background, ours, theirs = drawn.findall(f"{SVG}rect")
    texts = [text.text for text in drawn.findall(f"{SVG}text")]
    assert background.get("width") == drawn.get("width")
    assert float(theirs.get("width", 0)) == pytest.approx(4 * float(ours.get("width", 0)), abs=0.2)
    assert ours.get("class") != theirs.get("class")
    assert texts[0] == HEADLINES["W1"].title
    assert "a <peer> & more" in texts
    assert "absent" not in texts
    assert drawn.find(f"{SVG}line") is None


def test_bar_parts_follow_the_order_of_the_legend() -> None:
    chart = Chart(
        "x", "A title", "a note", [Bar("one", (10.0, 30.0), "40")], legend=("a", "b"), mark=Mark(20.0, "half")
    )
    drawn = ET.fromstring(plots.svg(chart))  # noqa: S314 - we wrote it
    _, legend_a, legend_b, a, b = drawn.findall(f"{SVG}rect")
    assert [a.get("class"), b.get("class")] == [legend_a.get("class"), legend_b.get("class")]
    left, width, further = float(a.get("x", 0)), float(a.get("width", 0)), float(b.get("x", 0))
    assert further == pytest.approx(left + width, abs=0.2)
    line = drawn.find(f"{SVG}line")
    assert line is not None
    assert float(line.get("x1", 0)) == pytest.approx(left + 2 * width, abs=0.2)


def test_what_was_measured_is_drawn_and_nothing_else() -> None:
    assert list(charts.charts({"W6": {"memory_mb": 1.0}})) == []
    drawn = {chart.name: chart for chart in charts.charts(DRAWN)}
    assert {name: [(bar.label, bar.parts) for bar in chart.bars] for name, chart in drawn.items()} == {
        "W1": [("1,000 jobs, p50", (400.0,)), ("1,000 jobs, p99", (900.0,)), ("10,000 jobs, p99, durable", (7000.0,))],
        "W2": [("three processes", (1000.0,)), ("graphs of six steps, durable", (50.0,))],
        "W4": [("2 copies", (5.0, 1.0, 4.0, 0.0, 0.0)), ("1 copy, R3 durable", (2.0, 6.0, 0.0, 0.0, 0.0))],
        "W5-durable": [("0 before", (100.0,)), ("50 before", (80.0,))],
    }
    assert [bar.figure for bar in drawn["W5-durable"].bars] == ["100 /s, 100%", "80.0 /s, 80%"]
    assert drawn["W5-durable"].mark == Mark(90.0, "90% of the first")


def test_every_peer_can_be_read_without_its_library() -> None:
    hidden = f"import sys; sys.modules.update(dict.fromkeys({LIBRARIES}))"
    program = f"{hidden}; from benchmarks.peers.peer import peer; [peer(name) for name in {PEERS}]"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_says_what_it_needs(name: str) -> None:
    it = peer(name)
    assert it.SERVER in {"", "nats", "postgresql", "redis"}
    assert not set(it.PARTS) & set(it.PARTS_THAT_SCHEDULE)
    assert callable(it.run)
    assert callable(it.client)


async def test_a_peer_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer("celery"), "DISTRIBUTIONS", ("pytest", "never-published-anywhere"))
    with pytest.raises(measurement.NotMeasuredError, match=r"^never-published-anywhere is not installed"):
        await measurement.measure("celery", "W2")


async def test_peer_without_its_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "PROGRAM", ("no-such-program",))
    with pytest.raises(measurement.NotMeasuredError, match="there is no no-such-program"):
        await measurement.measure("bullmq", "W2")


def test_a_metric_says_what_it_was_found_for() -> None:
    figures = labelled({"p99_ms": 1.0, "cpu_ms (1: stages)": 2.0}, "2 copies")
    assert figures == {"p99_ms (2 copies)": 1.0, "cpu_ms (2 copies, 1: stages)": 2.0}


def test_percentiles_of_nothing_are_an_error() -> None:
    assert percentiles(range(100), unit="ms") == {"p50_ms": 50, "p99_ms": 99, "max_ms": 99}
    with pytest.raises(ValueError, match="nothing began, so there is nothing to take percentiles of"):
        percentiles([], unit="ms")


@pytest.fixture(autouse=True)
def _small_and_urgent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The yardstick takes a moment only, and the history does not wait until all other tests are over."""
    monkeypatch.setattr(bare, "MESSAGES", 300)
    monkeypatch.setattr(a_system, "NOT_URGENT", ())


@pytest.mark.slow
async def test_system_does_everything_that_workloads_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FUNCTIONS, "3")  # as `--functions 3` does
    async with system() as it:
        plain = await throughput(it, 30)
        events = await StoredEvents.of(it.installation.log)
        graph = await graphs(it, 3)
        alone, together = await latency(it, 3), await fire_lag(it, (4,))
        agents = await AgentRegistry(it.installation.log, it.installation.projections).agents()
    assert 2 < plain["messages_per_execution"] < 6  # its trigger, its public event, and parts of commits and reports
    assert 2 < graph["messages_per_execution"] < 6 * 4
    assert {"cpu_ms_per_execution (nats)", "cpu_ms_per_execution (1: stages)"} <= plain.keys()
    assert {"p50_ms", "p99_ms", "max_ms"} <= alone.keys()
    assert (together["missed (4)"], together["twice (4)"]) == (0, 0)
    assert {len(agent.functions) for agent in agents} == {3}
    tasks = Counter(task.message.function for task in events.facts(Dispatched))
    assert tasks == {FUNCTION: 10, "benchmark/other-1": 10, "benchmark/other-2": 10}


@pytest.mark.full
@pytest.mark.slow
async def test_executions_are_held_and_let_go() -> None:
    async with system() as it:
        measured = await held(it, 30)
        assert len(it.started) == 30
    assert 2 < measured["messages_per_execution"] < 8


@pytest.mark.full
@pytest.mark.slow
async def test_jobs_start_on_every_shard() -> None:
    async with system() as it:
        measured = await fan_out(it, 3, 4)
        assert len(it.started) == 3 + 3 * 4
    for label in ("3 jobs", "3 jobs on 4 shards"):
        assert (measured[f"missed ({label})"], measured[f"twice ({label})"]) == (0, 0)
    assert measured["starts_per_second (3 jobs on 4 shards)"] > 0
    assert 1 < measured["messages_per_execution (3 jobs on 4 shards)"] < 5  # its event, parts of commits and reports


async def test_client_costs_are_measured_beside_nats_py() -> None:
    measured = await client_cost(Conditions(), messages=600)
    for label in ("nats-py alone", "fast client", "public fetch"):
        assert measured[f"client_cpu_us_per_message ({label})"] > 0
    assert {"ratio (fast client to nats-py alone)", "bare_rate"} <= measured.keys()


@pytest.mark.full
@pytest.mark.slow
async def test_waits_are_measured_beside_a_burst() -> None:
    async with system() as it:
        measured = await neighbors(it, 30, jobs=3, idle_runs=3)
    assert measured["runs (one job)"] > 0
    assert measured["runs (many jobs)"] > 0
    assert measured["p99_ratio (one job, many jobs)"] > 0


@pytest.mark.full
@pytest.mark.slow
async def test_waits_are_measured_beside_a_waiting_list() -> None:
    async with system() as it:
        measured = await waiting_list(it, 30, idle_runs=3)
        events = await StoredEvents.of(it.installation.log)
    assert len(events.facts(Queued)) == 30
    for label in ("filling", "standing", "draining"):
        assert measured[f"runs ({label})"] > 0
        assert measured[f"p99_ratio ({label}, idle)"] > 0


@pytest.mark.full
@pytest.mark.slow
async def test_waits_are_measured_beside_a_graph() -> None:
    async with system() as it:
        measured = await wide_graph(it, 30, alone=3)
    assert measured["executions_beside"] > 0
    assert measured["p99_ratio"] == measured["p99_ms (beside)"] / measured["p99_ms (alone)"]


@pytest.mark.full
@pytest.mark.slow
async def test_executions_start_beside_unserved_tasks() -> None:
    measured = await unserved(Conditions(tasks=30), executions=3)
    assert {"p99_ms (0 tasks)", "p99_ms (30 tasks)", "p99_ratio", "bare_rate"} <= measured.keys()
    assert measured["restart_to_first_start_s (30 tasks)"] > 0


@pytest.mark.full
@pytest.mark.slow
async def test_first_starts_after_restarts_are_measured() -> None:
    measured = await restart(Conditions(tasks=30))
    for case in ("0 claims", "30 claims", "30 claims, killed"):
        assert measured[f"restart_to_first_start_s ({case})"] > 0


@pytest.mark.full
@pytest.mark.slow
async def test_health_is_measured_during_each_attack() -> None:
    found = await figures(seconds=0.5)
    assert found.keys() == ATTACKS.keys()
    assert all(0 < metrics["p50_ms"] <= metrics["p99_ms"] <= metrics["max_ms"] for metrics in found.values())


@pytest.mark.full
@pytest.mark.slow
async def test_copies_on_a_cluster_are_compared_with_one() -> None:
    figures = await scale_out(
        Conditions(), nodes=3, copies=(1, 2), executions=300
    )  # fewer may take less CPU than is counted
    assert {f"cpu_ms_per_execution (1 copy, nats node-{n})" for n in (1, 2, 3)} <= figures.keys()
    both = figures["cpu_ms_per_execution (2 copies, 1: stages)"] + figures["cpu_ms_per_execution (2 copies, 2: stages)"]
    assert figures["stages_cpu_ms_per_execution (2 copies)"] == pytest.approx(both)
    assert 2 < figures["messages_per_execution (2 copies)"] < 6
    assert {"ratio (stages_cpu_ms_per_execution, 2 copies)", "bare_rate", "bare_rate (2 copies)"} <= figures.keys()


@pytest.mark.full
@pytest.mark.slow
async def test_matcher_is_measured_and_replaced() -> None:
    figures = await matcher(Conditions(), executions=300)
    assert figures["matcher_tasks_per_second"] == pytest.approx(1_000 / figures["matcher_cpu_ms_per_execution"])
    assert figures["matcher_failover_s"] > 0


@pytest.mark.slow
async def test_cluster_streams_have_a_replica_on_each_node() -> None:
    async with servers(nodes=3) as nats, initialized(nats.settings) as installation:
        names = [installation.names.stream(stream) for stream in (Stream.REQUESTS, Stream.REPORTS)]
        states = [await installation.connection.manage(f"STREAM.INFO.{name}") for name in names]
        assert [one["config"]["num_replicas"] for one in states] == [3, 3]


@pytest.mark.full
@pytest.mark.slow
async def test_fill_ends_idle_with_a_complete_history() -> None:
    async with servers() as nats, initialized(nats.settings) as installation:
        filled = await fill(installation, 300, nats=nats.pids)
        async with installation.history() as history:
            assert await history.count() == 300
        assert min(filled.executed, filled.recorded) > 0


@pytest.mark.full
@pytest.mark.slow
async def test_growth_is_measured_after_a_server_restart(capsys: pytest.CaptureFixture[str]) -> None:
    figures = await growth(Conditions(sizes=(0, 40)), executions=20)
    of_each = {
        "executions_per_second", "cpu_ms_per_execution", "messages_per_execution", "bare_rate",
        "nats_memory_mb", "nats_disk_mb", "history_disk_mb",
    }  # fmt: skip
    assert {f"{metric} ({size} before)" for metric in of_each for size in (0, 40)} <= figures.keys()
    assert {"ratio (executions_per_second, 40 before)", "ratio (cpu_ms_per_execution, 40 before)"} <= figures.keys()
    assert {"filled_per_second (40 before)", "recorded_per_second (40 before)"} <= figures.keys()
    assert "filled_per_second (0 before)" not in figures
    errors = capsys.readouterr().err
    assert "executions before, run: 40 of 40 (100%)" in errors
    assert "executions before, recorded: 40 of 40 (100%)" in errors


@pytest.mark.full
@pytest.mark.slow
async def test_registered_jobs_and_replay_have_a_yardstick() -> None:
    assert {"restart_to_first_tick_s", "peak_memory_mb", "idle_cpu_percent", "bare_rate"} <= (
        await registered(Conditions(), jobs=20, idle=0.5)
    ).keys()
    assert {"folded_per_second", "audited_per_second", "bare_rate"} == (await replay(Conditions(), facts=500)).keys()


def test_results_are_written_although_a_workload_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def works(conditions: Conditions) -> Metrics:
        return {"p50_ms": 2.0 if conditions.sync_always else 1.0, "p99_ms": 3.0, "max_ms": 4.0, "bare_rate": 9.0}

    async def fails(_: Conditions) -> Metrics:
        raise TimeoutError("3 of 20,000 executions completed within 60 s")

    monkeypatch.setitem(WORKLOADS, "W2", fails)
    monkeypatch.setitem(WORKLOADS, "W3", works)
    file = tmp_path / "figures.json"
    assert main(["W3", "W2", "--json", str(file), "--plots", str(tmp_path / "drawn")]) == 1
    written = json.loads(file.read_text("utf-8"))
    assert written.keys() == {"W3", "W3 durable"}
    assert (written["W3"]["p50_ms"], written["W3 durable"]["p50_ms"]) == (1.0, 2.0)
    assert [path.name for path in (tmp_path / "drawn").iterdir()] == ["W3.svg"]
    output = capsys.readouterr()
    assert "TimeoutError: 3 of 20,000 executions completed within 60 s" in output.err
    assert output.err.endswith("failed: W2, W2 durable\n")
    assert main(["W3", "--profile", "default"]) == 0


def test_cost_of_traces_is_measured_by_ratio() -> None:
    off, few, every = (traces.measure(sampling, 20) for sampling in traces.CASES.values())
    assert off.recorder == 0
    assert min(few.recorder, every.recorder, every.export) > 0
