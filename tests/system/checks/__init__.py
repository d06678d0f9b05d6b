"""What must hold of any log, read whole and judged by nothing but its facts.

The rules say a second time, and more plainly, what the domain promises: they share its events, its names and its calendar,
and none of its decisions. Each looks at everything and yields what breaks it, with the facts that show it.
"""

from typing import Final

from .everything import Everything, Rule, Violation
from .life import a_dead_letter_is_kept_for_each_failure, executions_live_in_order, what_is_done_was_reported
from .locks import a_lock_has_one_holder, who_runs_under_a_lock_holds_it
from .public import each_firing_is_told_once, each_skip_is_told_once
from .requests import an_instant_has_one_execution, no_fact_is_there_twice, what_was_asked_for_is_answered
from .time import time_is_tiled

__all__ = ["RULES", "Everything", "Violation", "violations"]

RULES: Final[tuple[Rule, ...]] = (
    time_is_tiled,
    an_instant_has_one_execution,
    what_was_asked_for_is_answered,
    no_fact_is_there_twice,
    executions_live_in_order,
    what_is_done_was_reported,
    a_dead_letter_is_kept_for_each_failure,
    a_lock_has_one_holder,
    who_runs_under_a_lock_holds_it,
    each_firing_is_told_once,
    each_skip_is_told_once,
)


def violations(everything: Everything) -> list[Violation]:
    """Whatever does not hold."""
    return [violation for rule in RULES for violation in rule(everything)]
