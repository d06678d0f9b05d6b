"""Text of jobs, workers and users never changes the terminal: each command over hostile data."""

import json
from collections.abc import Sequence
from io import StringIO

import pytest
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tests.cli.conftest import World
from tests.cli.test_dead_letters import letter
from tests.cli.test_executions import dispatched, failure_of_load, started
from tests.cli.test_executions import record as record_history
from tests.cli.test_logs import say
from tests.domain.given import ID, JOB, admitted, plan
from tocsin.cli.output.format import Output, encoded
from tocsin.domain.agent import AgentRecord, AgentState
from tocsin.domain.events import Actor, Failure, OutputLine, StepProgress
from tocsin.subjects import Bucket, Stream
from tocsin.testing import START

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202edrowssap\u2066\x7f\r\x08\u200f\ufeff"
ERROR = Failure(type=f"Oops{HOSTILE}", message=HOSTILE, traceback=f"Traceback\n{HOSTILE}", code=HOSTILE)
AGENT = "01890f3e-0000-7000-8000-000000000001"


@pytest.fixture
def hostile(world: World) -> World:
    definition = {"name": JOB, "function": "f", "description": HOSTILE, "tags": ["t"], "input": {"name": HOSTILE}}
    assert world.call("jobs", "apply", "-f", world.jobs(json.dumps({"jobs": [definition]}))).code == 0
    by = Actor(identity=HOSTILE, source=HOSTILE)
    world.append(
        admitted(plan({"load": (), "clean": ("load",)})).changed(by=by),
        dispatched("load", 1),
        started("load", 1).changed(worker=HOSTILE),
        *failure_of_load(ERROR),
    )
    letters = letter()
    world.append(letters.changed(last_error=ERROR, input={"day": HOSTILE}))
    say(
        world,
        OutputLine(job=JOB, execution_id=ID, step="load", attempt=2, time=START, text=HOSTILE),
        StepProgress(job=JOB, execution_id=ID, step="load", attempt=2, time=START, fraction=0.5, message=HOSTILE),
    )
    record = AgentRecord(
        name="mail-1",
        agent_id=AGENT,
        state=AgentState.ENABLED,
        functions=[HOSTILE],
        labels={"zone": HOSTILE},
        host=HOSTILE,
    )
    record_history(world, Stream.LOG)
    world.do(world.projections.put(Bucket.AGENTS, f"mail-1.{AGENT}", record.model_dump_json().encode()))
    return world


COMMANDS = [
    ("executions", "show", ID),
    ("executions", "logs", ID),
    ("why", JOB),
    ("jobs", "list"),
    ("jobs", "show", JOB),
    ("dead-letters", "show", ID),
    ("agents", "list"),
    ("agents", "show", "mail-1"),
    ("events", "audit-trail"),
    ("events", "replay", "--job", JOB),
    ("executions", "list"),
    ("dead-letters", "list"),
    ("stats", "--since", "2025-12-31T00:00Z"),
    ("audit",),
    ("jobs", "export"),
    ("schedule",),
    ("sql", "SHOW JOBS"),
    ("sql", f"SHOW CREATE JOB {JOB}"),
    ("import", "crontab", "hostile", "--timezone", "UTC"),
    ("import", "kubernetes", "hostile", "--timezone", "UTC"),
    ("import", "celery", "hostile", "--timezone", "UTC"),
    ("import", "airflow", "hostile", "--timezone", "UTC"),
    ("import", "crontab", HOSTILE),
    ("jobs", "show", HOSTILE),
    ("executions", "show", HOSTILE),
    ("jobs", "apply", "-f", HOSTILE),
]

BIDI = "\u202edrowssap\u2066\u200f"
"""Files with other control characters are refused."""
SOURCES = {
    "crontab": f"0 5 * * * /bin/{BIDI}\n* {BIDI}\n",
    "kubernetes": f'kind: CronJob\nmetadata: {{ name: "{BIDI}" }}\nspec: {{ schedule: "{BIDI}" }}\n',
    "celery": f"beat_schedule = {{'{BIDI}': {{'task': '{BIDI}', 'schedule': 5, 'args': ['{BIDI}']}}}}\n",
    "airflow": f"from airflow import DAG\nDAG('{BIDI}', schedule='@daily', description='{BIDI}')\n",
}


def controls(text: str) -> list[str]:
    return sorted({char for char in text if not char.isprintable() and char != "\n"})


@pytest.mark.parametrize("form", ["table", "json"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_no_control_character_reaches_the_terminal(hostile: World, command: Sequence[str], form: str) -> None:
    (hostile.folder / "hostile").write_text("".join(SOURCES.get(word, "") for word in command))
    result = hostile.call(*command, "-o", form)
    assert controls(result.out) == []
    assert controls(result.err) == []
    assert result.out or result.err
    if HOSTILE not in command:
        assert result.code in {0, 1}, result.err  # 1: the audit finds that the events are not a real log


def test_json_holds_the_text_as_it_is(hostile: World) -> None:
    shown = hostile.call("executions", "show", ID, "-o", "json").json
    assert shown["facts"][-1]["fact"]["error"]["message"] == HOSTILE
    assert json.loads(encoded({"text": HOSTILE})) == {"text": HOSTILE}


def test_nested_text_is_escaped_and_own_styles_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    rows = Table()
    rows.add_row(Text(HOSTILE, style="red"))
    console = Output().console()
    console.print(Panel(rows))
    shown = screen.getvalue()
    assert "\\x1b]0;owned" in shown
    assert "\x1b[31m" in shown
    assert not {"\x07", "\x9b", "\u202e", "\u2066", "\x7f"} & set(shown)
    assert "\x1b]" not in shown
