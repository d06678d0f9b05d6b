"""The waves in which a batch of inputs is decided and stored.

    decide    on each input; read all missing states together, and decide again on the inputs that required them.
    confirm   that the states on which the steps rest are the newest.
    store     the changes of the wave in one write.
    repeat    with the inputs whose step says `again`, or whose guard failed.

A wave has at most one input of each ordering key, and one change of each scope. An input whose guard fails
more than `CONFLICT_LIMIT` times is decided alone, after all others. If it fails as often then, it is handed back. The inputs of a
wave that an unexpected error ended are decided alone too.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from ..ports import Append, EntryWrite, LogUnavailable, OutdatedState, StaleRead, Write, Written
from ..subjects import Bucket, subject_of
from .items import UNSEEN, Decided, Guarded, Item, Outcome, Result, guarded_change, one_for_each_scope
from .states import StateStore, View
from .step import Change, Decide, EndlessDecision, Events, Later, Missing, Put, Reading, Ref, Send

CONFLICT_LIMIT: Final = 5
"""Conflicts after which an input is decided alone, and after which it is then given up."""
_SAMPLE: Final = 2
"""If the first decisions of a wave, this many, miss the same reading, it is read before the others, which probably miss it too.

A reading expires with its wave, so that every batch of triggers of one job would be decided on twice.
"""
MAX_READS: Final = 200
"""Rounds of reads for one decision. Each round reads something new, so that more is a defect."""


class Waves:
    """Decides on batches over the states of a process."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._log = store.sources.log
        self._projections = store.sources.projections
        self._clock = store.sources.clock

    async def run(
        self,
        decide: Decide,
        items: Sequence[Item],
        *,
        on_signal: Callable[[object], None] | None = None,
        remainder: list[Item] | None = None,
        reads_first: bool = False,
    ) -> None:
        """Decide on items until each has an outcome; keep the order of each key.

        `reads_first`: read together what all items miss, because many of them wait for others of their key.

        With `remainder`, items whose next decision can wait have no outcome yet and are added there. Run them again. An
        item stays if others of its key follow.
        """
        queues: dict[object, deque[Item]] = {}
        for item in items:
            queues.setdefault(item.key, deque()).append(item)
        view = self._store.view()
        if reads_first and len(queues) < len(items):
            await self._read_for(decide, items, view)
        while queues:
            heads = [queue[0] for queue in queues.values()]
            wave = [item for item in heads if not item.is_alone] or heads[:1]
            try:
                await self._wave(decide, wave, view, on_signal)
            except Exception as error:  # noqa: BLE001 - a request for the whole wave failed
                open_items = [item for item in wave if item.outcome is None]
                is_common = len(wave) == 1 or isinstance(error, LogUnavailable)
                for item in open_items:
                    view.forget(item.touched)
                    if is_common:
                        item.fail(error)
                    else:
                        item.is_alone = True  # one of them may be the cause, and must not condemn the others
            view.expire()
            for item in wave:
                _advance(queues, item)
                if remainder is not None and item.low_priority and item.outcome is None and len(queues[item.key]) == 1:
                    del queues[item.key]
                    remainder.append(item)

    async def _wave(
        self, decide: Decide, items: Sequence[Item], view: View, on_signal: Callable[[object], None] | None
    ) -> None:
        decisions = await self._decide(decide, items, view)
        decisions = await self._confirm(decisions, view)
        wave = one_for_each_scope(decisions)
        results = iter(await self._write([change for part in wave for change in part.changes]))
        for part in wave:
            _settle(part, results, view, on_signal)

    # --- decide ------------------------------------------------------------------------------------------------------

    async def _read_for(self, decide: Decide, items: Sequence[Item], view: View) -> None:
        """Read together what the first decisions on items miss.

        Errors are reported when an item's turn comes.
        """
        now = self._clock.now()
        gaps: dict[Ref[Any], None] = {}
        for item in items:
            view.touched, view.expected = [], []
            view.sent, view.changed, view.is_repeated = item.sent, item.changed, item.is_repeated or item.steps > 0
            try:
                decide(item.input, view, now)
            except Missing as error:
                gaps[error.ref] = None
                gaps.update(dict.fromkeys(view.missing_of_expected()))
            except Exception:  # noqa: BLE001, S112 - as above
                continue
        with suppress(LogUnavailable, StaleRead):
            await view.read(gaps)

    async def _decide(self, decide: Decide, items: Sequence[Item], view: View) -> list[Decided]:
        """Return each item's step; read the missing states, and decide again on them."""
        now = self._clock.now()
        decisions: dict[int, Decided] = {}
        candidates: list[tuple[int, Item]] = list(enumerate(items))
        for _ in range(MAX_READS):
            gaps: dict[Ref[Any], None] = {}
            outdated: list[Ref[Any]] = []  # forgotten after the round, or each item would have others read again
            repeats: list[tuple[int, Item]] = []
            for number, (index, item) in enumerate(candidates, 1):
                try:
                    part = self._decide_once(decide, item, view, now, outdated)
                except Missing as error:
                    is_shared = error.ref in gaps and isinstance(error.ref.kind, Reading)
                    gaps[error.ref] = None
                    gaps.update(dict.fromkeys(view.missing_of_expected()))
                    repeats.append((index, item))
                    if is_shared and number == _SAMPLE:
                        repeats += candidates[number:]
                        break
                else:
                    if part is not None:
                        decisions[index] = part
            view.forget(outdated)
            if not repeats:
                return [decisions[index] for index in sorted(decisions)]
            await view.read(gaps)
            candidates = repeats
        for _, item in candidates:
            item.fail(EndlessDecision(f"the decision on {item.input.subject} reads without an end"))
        return [decisions[index] for index in sorted(decisions)]

    def _decide_once(
        self, decide: Decide, item: Item, view: View, now: datetime, outdated: list[Ref[Any]]
    ) -> Decided | None:
        view.touched, view.expected = [], []
        item.touched = view.touched
        view.sent, view.changed, view.is_repeated = item.sent, item.changed, item.is_repeated or item.steps > 0
        try:
            step = decide(item.input, view, now)
            changes = tuple([guarded_change(change, view) for change in step.changes if change])
            rests_on = tuple([(ref, view.at(ref)) for ref in step.rests_on])
        except Missing:
            raise
        except OutdatedState as error:
            outdated += item.touched
            _conflict(item, view, error, forget=False)
        except Exception as error:  # noqa: BLE001 - a defect of one decision must not stop the others
            item.fail(error)
        else:
            return Decided(item, step, changes, rests_on)
        return None

    # --- confirm -----------------------------------------------------------------------------------------------------

    async def _confirm(self, decisions: Sequence[Decided], view: View) -> list[Decided]:
        """Keep the steps that rest on the newest states."""
        refs = list(dict.fromkeys(ref for part in decisions for ref, _ in part.rests_on))
        if not refs:
            return list(decisions)
        tails = dict(zip(refs, await self._log.tails(*(ref.key for ref in refs)), strict=True))
        current: list[Decided] = []
        for part in decisions:
            stale_refs = [ref for ref, at in part.rests_on if tails[ref] != at]
            if stale_refs:
                for ref in stale_refs:
                    view.confirm(ref, tails[ref])
                _conflict(part.item, view, StaleRead.of(str(stale_refs[0].key)), forget=False)
            else:
                current.append(part)
        return current

    # --- store -------------------------------------------------------------------------------------------------------

    async def _write(self, changes: Sequence[Guarded]) -> list[Written]:
        """Store the changes in one write, and the KV entries of each bucket in another."""
        writes: list[Write] = []
        entries: dict[Bucket, list[EntryWrite]] = {}
        for change in changes:
            if isinstance(change.write, EntryWrite):
                entries.setdefault(change.bucket, []).append(change.write)
            else:
                writes.append(change.write)
        written = await self._log.write(writes) if writes else []
        if not entries:
            return written
        messages = iter(written)
        shown = {bucket: iter(await self._projections.write(bucket, of)) for bucket, of in entries.items()}
        return [next(shown[c.bucket] if isinstance(c.write, EntryWrite) else messages) for c in changes]


def _settle(part: Decided, results: Iterator[Written], view: View, on_signal: Callable[[object], None] | None) -> None:
    """Fold the stored changes of a step; end its items or leave them for later."""
    errors: list[Exception] = []
    for guarded in part.changes:
        result = next(results)
        if isinstance(guarded.change, Events) and isinstance(guarded.write, Append) and result.sequences:
            if guarded.state is not UNSEEN:
                events, at = guarded.write.events, guarded.write.expect
                view.stored(guarded.change.ref, guarded.state, at, events, result.sequences)
            part.item.changed.add(guarded.change.ref)
        if result.error is not None:
            errors.append(result.error)
        else:
            _remember(guarded.change, result, part.item, view)
    for other in part.joined:
        if errors:
            _reject(other.item, view, errors)
        else:
            other.item.follow(other.step)
    if errors:
        _reject(part.item, view, errors)
        return
    if on_signal is not None:
        for signal in part.step.signals:
            on_signal(signal)
    part.item.follow(part.step)


def _remember(change: Change, result: Written, item: Item, view: View) -> None:
    """Remember a stored change for the next decision on its input."""
    match change:
        case Send():
            item.sent.add(change.message_id)
        case Later():
            item.sent.add(subject_of(change.timer))
        case Put(ref, bytes() as value):
            view.put(ref, value, result.sequences[-1])
        case _:
            pass


def _advance(queues: dict[object, deque[Item]], item: Item) -> None:
    """Remove a decided item; if it was not settled, hold back the items after it."""
    queue = queues[item.key]
    if item.outcome is None:
        if item.lets_pass and len(queue) > 1:
            _let_pass(queues, item)
        return
    queue.popleft()
    if not item.outcome.is_settled:
        for later in queue:
            later.outcome = Outcome(Result.HELD)
        queue.clear()
    if not queue:
        del queues[item.key]


def _let_pass(queues: dict[object, deque[Item]], item: Item) -> None:
    """Let the next item of a key be decided on beside an item.

    In a wave, the changes of the earlier item come first.
    """
    queues[item.key].popleft()
    item.key = item.input.sequence
    others = dict(queues)
    queues.clear()
    queues[item.key] = deque([item])
    queues.update(others)


def _reject(item: Item, view: View, errors: Sequence[Exception]) -> None:
    """Decide again after a conflict; after another error, end the item."""
    view.forget(item.touched)
    other = [error for error in errors if not isinstance(error, OutdatedState)]
    if other:
        item.fail(next((error for error in other if not isinstance(error, LogUnavailable)), other[0]))
    else:
        _conflict(item, view, errors[0])


def _conflict(item: Item, view: View, error: Exception, *, forget: bool = True) -> None:
    """Decide on an item again, with states that are read again."""
    if forget:
        view.forget(item.touched)
    item.conflicts += 1
    item.low_priority = False
    if item.conflicts > CONFLICT_LIMIT:
        if item.is_alone:
            item.outcome = Outcome(Result.OUTDATED, error=error)
        item.is_alone, item.conflicts = True, 0
