"""Deliberate bugs of the engine, each of which some schedule must catch (`mutations`)."""

from datetime import timedelta
from itertools import count
from typing import Final

from tocsin.domain.commit import Seal
from tocsin.engine.commit_loop import CommitLoop
from tocsin.engine.commit_writer import CommitWriter
from tocsin.engine.edge import EdgeDecisions
from tocsin.engine.fold import Fold
from tocsin.engine.leadership import Leadership
from tocsin.engine.pending import Pending, _rests
from tocsin.stages.retrier import Retrier

from .mutation import Mutation, bug

ENGINE_MUTATIONS: Final[tuple[Mutation, ...]] = (
    bug(
        "append behind the last message of the log, of any writer",
        CommitWriter.append,
        "draft.body, expect=expect)",
        "draft.body, expect=self._log._server.last)",
    ),
    bug(
        "take a lost answer for a refusal",
        CommitWriter.append,
        "self.unanswered_since = (\n",
        "return Appended(None)\n            self.unanswered_since = (\n",
    ),
    bug(
        "believe a leader of the stream that lags",
        CommitWriter._read_on,
        "return None  # a leader that lags",
        "return Appended(refusal.last)",
    ),
    bug(
        "fold a copy of a commit again",
        Seal._genuine,
        "if form.previous != head.digest:",
        "return _decode(content)\n        if False:",
    ),
    bug(
        "forget a key when a commit is undone",
        Fold.evolve,
        "put(self.states, scope, state)",
        "self.states[scope] = state",
    ),
    bug("undo no positions", Pending.undo, "for call in batch.closed:", "for call in ():"),
    bug("store claims of tasks that were undone", _rests, "cause.expect > newest", "False"),
    bug(
        "decide events again that another process decided",
        Pending.is_open,
        "self._fold.position(*key).has(cause.place)",
        "False",
    ),
    bug(
        "send effects before the commit is stored",
        CommitLoop._store,
        "    appended = await self.writer.append(draft)\n",
        "    await self._on_effects(batch.effects)\n    appended = await self.writer.append(draft)\n",
    ),
    bug(
        "answer proposals before the commit is stored",
        CommitLoop._store,
        "    appended = await self.writer.append(draft)\n",
        "    batch.settle()\n    appended = await self.writer.append(draft)\n",
    ),
    bug(
        "lose the rest of a cascade that is cut",
        CommitLoop._keep,
        "self.fold.keep(at)",
        "self.fold.keep(at); self.pending._events.clear()",
    ),
    bug(
        "keep what was decided although others stored first",
        CommitLoop.apply,
        "self._undo_open()",
        "pass",
    ),
    bug(
        "decide by the clock of the machine",
        Leadership.time,
        "await self._leases.time()",
        "(await self._leases.time()) and self._clock.now()",
    ),
    bug(
        "let executions leave before each stage took their end",
        Fold.floor.fget,  # type: ignore[attr-defined]
        "min((floors.get(stage, 0)",
        "max((floors.get(stage, 0)",
    ),
    bug(
        "let a stage keep a state of its own",
        Retrier.on_failure,
        "report=report, at=at)",
        "report=report, at=at + timedelta(milliseconds=vars(self).setdefault('seen', count()).__next__()))",
        timedelta=timedelta,
        count=count,
    ),
    bug(
        "decide on an answer before the fold caught up",
        EdgeDecisions.apply,
        "await self._view.loop.writer.catch_up()",
        "pass",
    ),
    bug(
        "show a definition by a fold that lags",
        EdgeDecisions._read,
        "await self._view.loop.writer.catch_up()",
        "pass",
    ),
    bug("replace a definition without its revision", EdgeDecisions._make, "value, expect=expect)", "value)"),
)
