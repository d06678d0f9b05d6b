"""The sentences of `tocsin why` on triggers, and on events that started nothing."""

from collections import Counter
from collections.abc import Iterator, Sequence

from ...domain import duration
from ...domain.definition import EventTrigger
from ...domain.events import EventIgnored, Skipped
from ...domain.text import printable
from ...services.explain import Answer, triggers_of


def on_events(answer: Answer) -> str:
    """Return the sentences; empty: the job has no triggers."""
    triggers = triggers_of(answer)
    if not triggers:
        return ""
    facts = [fact.message for fact in answer.facts]
    reasons = Counter(fact.reason for fact in facts if isinstance(fact, EventIgnored))
    listed = ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))
    sentences = list(_delays(triggers))
    if listed:
        sentences.append(f"The newest events that started nothing: {listed}.")
    refusals = [fact for fact in facts if isinstance(fact, Skipped) and fact.refusal is not None]
    for skipped in refusals[-1:]:
        refusal = skipped.refusal
        assert refusal is not None  # noqa: S101 - for the type checker
        sentences.append(f"The newest event that it refused, by {refusal.code}: {printable(refusal.message)}.")
    return " ".join(["", *sentences, f"`tocsin triggers ignored {answer.job}` lists events that started nothing."])


def _delays(triggers: Sequence[EventTrigger]) -> Iterator[str]:
    """Yield a sentence on each trigger whose events wait."""
    for trigger in triggers:
        source = trigger.source_text
        if trigger.debounce is not None:
            of = "of its key" if trigger.key else "of it"
            at_most = trigger.debounce.longest
            yield (
                f"An event of `{source}` starts a run when no other {of} came for {duration.short(trigger.debounce.quiet)}, "
                f"at most {duration.short(at_most)} after the first (debounce)."
            )
        if trigger.batch is not None:
            yield (
                f"Events of `{source}` start a run together: {trigger.batch.max:,} of them, or those of {duration.short(trigger.batch.within)} "
                "(batch)."
            )
