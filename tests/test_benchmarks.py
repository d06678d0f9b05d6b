"""What the benchmarks print and draw, and that a peer that is not installed stops nobody. Nothing is timed here."""

import re
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest
from benchmarks import comparison, plots
from benchmarks.__main__ import arguments
from benchmarks.comparison import HEADLINES, Results, Row
from benchmarks.peers import PEERS, measuring
from benchmarks.peers.peer import peer

LIBRARIES = ("apscheduler", "arq", "celery", "dbos", "kombu", "procrastinate", "taskiq", "taskiq_nats")
RESULTS: Results = {
    "W2": {"executions_per_second": 1000.0, "bare_rate": 9.0},
    "W2 durable": {"executions_per_second": 250.0},
    "W2 arq": {"executions_per_second": 500.0},
    "W2 taskiq": {"executions_per_second": 2000.0},
    "W1 dbos": {"p99_ms (1,000)": 8900.0, "missed (1,000)": 3.0, "twice (1,000)": 0.0},
}


def test_all_peers_are_measured_unless_some_are_named() -> None:
    assert arguments(["W2"]).peers == ()
    assert arguments(["W2", "--peers"]).peers == PEERS
    assert arguments(["W2", "--peers", "celery,arq"]).peers == ("celery", "arq")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("W2 --peers cron", "no peer is called cron: there are apscheduler, arq, "),
        ("--peers W2", "no peer is called W2"),
        ("W5 --peers", "peers are measured in W1, W2, W3, and none of these was asked for"),
        ("W2 --plots drawn", "--plots draws comparisons with peers: add --peers"),
        ("W99", "no workload is called W99: there are W1, "),
    ],
)
def test_a_wrong_command_line_is_told(line: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(line.split())
    assert told in re.sub(r"\s+", " ", capsys.readouterr().err)


def test_a_table_has_tocsin_then_the_best_then_those_without_a_figure() -> None:
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


def test_what_a_peer_missed_stands_beside_its_lag_and_there_is_no_ratio_to_nothing() -> None:
    rows = comparison.rows("W1", RESULTS, {"dbos": "3.4"}, {})
    assert rows == [Row("dbos 3.4", 8900.0, "3 missed")]
    assert "-  3 missed" in comparison.table("W1", rows)


@pytest.mark.parametrize("workload", HEADLINES)
def test_a_drawing_is_svg_with_a_bar_for_each_figure(workload: str) -> None:
    rows = [Row("tocsin", 10.0), Row("a <peer> & more", 40.0), Row("absent", None, "not measured")]
    drawn = ET.fromstring(plots.bars(workload, rows))  # noqa: S314 - we wrote it
    svg = "{http://www.w3.org/2000/svg}"
    background, ours, theirs = drawn.findall(f"{svg}rect")
    texts = [text.text for text in drawn.findall(f"{svg}text")]
    assert background.get("width") == drawn.get("width")
    assert float(theirs.get("width", 0)) == pytest.approx(4 * float(ours.get("width", 0)), abs=0.2)
    assert ours.get("fill") != theirs.get("fill")
    assert texts[0] == HEADLINES[workload].title
    assert "a <peer> & more" in texts
    assert "absent" not in texts


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
    with pytest.raises(measuring.NotMeasuredError, match=r"^never-published-anywhere is not installed"):
        await measuring.measure("celery", "W2")


async def test_a_peer_whose_program_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "PROGRAM", ("no-such-program",))
    with pytest.raises(measuring.NotMeasuredError, match="there is no no-such-program"):
        await measuring.measure("bullmq", "W2")
