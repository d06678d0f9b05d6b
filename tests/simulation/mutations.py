"""Deliberate bugs, each of which some schedule must catch: the proof of the simulation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Final, cast

from tocsin.domain import dead_letter, execution, ids, ledger, lock, quorum, recovery, retry
from tocsin.domain.execution import attempts, lifecycle, tasks
from tocsin.domain.execution.steps import Steps
from tocsin.domain.ledger import instants
from tocsin.domain.task_board import TaskBoard
from tocsin.domain.task_lanes import TaskLanes
from tocsin.engine import locks, mq_tasks, public_events, report_lists, rerun
from tocsin.engine.clock_guard import ClockGuard
from tocsin.engine.leader_election import LeaderElection
from tocsin.stages import lock_keeper
from tocsin.stages.agent_keeper import acknowledgements
from tocsin.stages.agent_keeper.acknowledgements import Acknowledgements
from tocsin.stages.agent_keeper.stage import AgentKeeper
from tocsin.stages.dependency_keeper import stage as dependency_keeper
from tocsin.stages.matcher.agents import HeardAgent
from tocsin.stages.matcher.claim_checks import ClaimChecks
from tocsin.stages.matcher.claims import Claims
from tocsin.stages.matcher.end_notices import EndNotices
from tocsin.stages.matcher.fetch_server import FetchServer
from tocsin.stages.matcher.followed_tasks import FollowedTasks
from tocsin.stages.matcher.http_workers import HttpWorkers
from tocsin.stages.matcher.operator_decisions import OperatorDecisions
from tocsin.stages.matcher.owner_candidates import OwnerCandidates
from tocsin.stages.matcher.owners import Owners
from tocsin.stages.matcher.purges import Purges
from tocsin.stages.matcher.queue_rates import QueueRates
from tocsin.stages.matcher.stage import Matcher
from tocsin.stages.matcher.task_sender import LimitedHandOver
from tocsin.stages.mq_bridge import MqBridge
from tocsin.stages.recorder.stage import Recorder
from tocsin.stages.retrier import Retrier
from tocsin.worker.agent import AgentAnnouncer
from tocsin.worker.outcome import StopReason
from tocsin.worker.task_pool import Slots

from .engine_mutations import ENGINE_MUTATIONS
from .focus import DRAINS, FORGERY, OPERATORS, PRIORITIES, QUORUMS, first_of, focus_of
from .mutation import Edit, Mutation, bug, made
from .simulation import Engine, play

MUTATIONS: Final[tuple[Mutation, ...]] = (
    *ENGINE_MUTATIONS,
    bug(
        "forget the watermark when the clock is behind it",
        instants.undecided_occurrences,
        "if state.watermark else regime.since",
        "if state.watermark and state.watermark <= now else regime.since",
    ),
    bug(
        "fire what was named while the job was paused",
        instants._refusal,
        "regime.paused or",
        "state.is_paused or",
    ),
    bug(
        "fire the past of an edit",
        instants.undecided_occurrences,
        "start = max(state.watermark, regime.since) if state.watermark else regime.since",
        "start = state.watermark or regime.since",
    ),
    bug(
        "decide by the newest definition alone",
        instants.undecided_occurrences,
        "zip(state.regimes, ends, strict=False)",
        "((state.regimes[-1], now),)",
    ),
    bug("fire by the clock of the machine", LeaderElection.time, "else now", "else self._clock.now()"),
    Mutation(
        "believe any clock",
        (
            Edit(ClockGuard._accept, "offset.least <= (LIMIT_S if self._is_within else AGAIN_S)", "True"),
            Edit(LeaderElection.time, "else now", "else self._clock.now()"),
        ),
    ),
    bug(
        "look no more at what was named before a definition was replaced",
        ledger.next_instant,
        "current.since > after",
        "False",
    ),
    bug(
        "make an id of the moment",
        ids.occurrence_id,
        '"occurrence", job,',
        '"occurrence", job, str(next(moments)),',
        moments=count(),
    ),
    bug(
        "make one id of two triggers",
        ids.trigger_id,
        '_uuid7(at, "trigger", job, message_id, "")',
        '_uuid7(at.replace(second=0, microsecond=0), "trigger", job)',
    ),
    bug("announce without a look", public_events.announce, "last > required.after", "False"),
    bug(
        "announce no skip of an execution without a lock",
        public_events.plan,
        "return announce_decision(state.decided, states, now)",
        "return announce_decision(None, states, now)",
    ),
    bug(
        "expire a lock without proof",
        locks.is_held,
        "not states(execution_state(job, job_lock.holder)).is_over",
        "False",
    ),
    bug(
        "release the lock when a step ends",
        locks.is_held,
        "not states(execution_state(job, job_lock.holder)).is_over",
        "not (state := states(execution_state(job, job_lock.holder))).is_over"
        ' and not any(s.phase == "completed" for s in state.steps.values())',
    ),
    bug(
        "let in the newest instead of the earliest",
        locks.hand_on,
        "(first := job_lock.waiting.first)",
        "(first := max(job_lock.waiting, key=lambda one: one.scheduled_time, default=None))",
    ),
    bug("guess the fencing token", lock_keeper._finish_admission, "job_lock.fence", "job_lock.fence + 1"),
    bug("guess the planner's fencing token", locks._admit_holder, "fence=fence)", "fence=fence + 1)"),
    bug(
        "acquire a lock past the executions that wait",
        locks._begin_with_lock,
        "held.waiting.first is None",
        "True",
    ),
    bug(
        "hand the lock on for no end by cancellation",
        lock_keeper.LockKeeper.on_end,
        "not _may_hold(end)",
        "not _may_hold(end) or isinstance(end, Cancelled)",
    ),
    bug(
        "do not admit an execution that has the lock",
        lock_keeper._admission,
        "execution.admit(states(ref), fence=fence)",
        "()",
    ),
    bug(
        "queue whatever waits already",
        lock.is_queue_full,
        "waiting >= most_waiting(wanted)",
        "False",
    ),
    bug(
        "answer no trigger that is skipped",
        public_events.announce,
        "if isinstance(decision.message, Skipped)",
        "if False",
    ),
    bug("announce nothing again", public_events.announce_decision, "announce(decided, states, now)", "DONE"),
    bug(
        "announce nothing again of whom the lock let in",
        lock_keeper._finish_admission,
        "if states.has_changed(ref)",
        "if False",
    ),
    bug(
        "announce nothing again of what is asked for again",
        lock_keeper.LockKeeper.on_planned,
        "return step or announce_decision(state.decided, states, now)",
        "return step or DONE",
    ),
    bug(
        "look no more who is cancelled before it was let in",
        lock_keeper._may_hold,
        "isinstance(end, Cancelled)",
        "False",
    ),
    bug(
        "end a wait while the run of an instant is unknown",
        dependency_keeper._answer,
        "if not is_hidden and not is_known:",
        "if False:",
    ),
    Mutation(
        "dispatch again what was dispatched",
        (
            Edit(tasks.is_ready, "phase is not Phase.WAITING", "phase is None"),
            Edit(Steps._is_ready, "self._steps[name].phase is Phase.WAITING", "True"),
        ),
    ),
    bug(
        "dispatch a step with one dependency missing",
        Steps._is_ready,
        "or self._missing[name]",
        "or self._missing[name] > 1",
    ),
    bug(
        "let the timer be the decision",
        execution.dispatch_retry,
        "step.phase is not Phase.RETRYING or attempt != step.attempt + 1",
        "attempt < step.attempt",
    ),
    bug("let two claim one delivery", execution.claim, "delivery <= current.delivery", "False"),
    bug(
        # A report that names its claim, as every worker's does, is checked twice: removing one check has no effect.
        "count the failure of an old delivery",
        execution.fail,
        "or report.delivery not in {None, step.delivery}:\n        return []\n    if report.claim not in {None, step.claim}:",
        ":",
    ),
    bug("let an end be followed by another", attempts._reported, "state.status is Status.ADMITTED and", ""),
    bug("cancel what is over", execution.cancel, "state.status not in {Status.PLANNED, Status.ADMITTED}", "False"),
    bug(
        "be done when the first step is",
        attempts._is_completed,
        "return state.steps.is_completed",
        "return any(step.phase is Phase.COMPLETED for step in state.steps.values())",
    ),
    bug("cancel no step behind a failure", lifecycle.unstarted_steps, "step.phase is Phase.WAITING", "False"),
    bug(
        "hand over one attempt",
        MqBridge.on_task,
        '"mq-task", task.token, recorded.sequence',
        '"mq-task", task.execution_id, task.step',
    ),
    bug("hand over what another task was", mq_tasks.envelope, "token=task.token", "token=''"),
    bug(
        "hand over the number of the lock as the fence",
        mq_tasks.envelope,
        "fence=recorded.sequence",
        "fence=task.fence or 1",
    ),
    bug(
        "take an answer for the attempt that is current",
        MqBridge._candidates,
        "answer.attempt in {None, attempt}",
        "True",
    ),
    bug("take an answer for whatever step is in flight", MqBridge._candidates, "answer.step in {None, step}", "True"),
    bug("take an answer to what was never handed over", MqBridge._candidates, "self._is_outside(state, step)", "True"),
    bug("believe an answer without a token", MqBridge._report, "answer.token is not None", "False"),
    bug("take each answer for a success", MqBridge._report, "outcome=answer.outcome", "outcome='completed'"),
    bug(
        "report one attempt",
        MqBridge.on_completion,
        'message_id=ids.report_id(report.proof or "", subject)',
        "message_id=execution_id + report.step",
    ),
    bug(
        "let a redelivery take over what is leased",
        execution.claim,
        "delivery <= current.delivery or current.leased_until",
        "delivery <= current.delivery",
    ),
    bug(
        "put off no lease for a sign of life",
        execution.extend,
        "until = at + lease_span(report.lease)",
        "until = (step.claimed_at or at) + lease_span(report.lease)",
    ),
    bug(
        "release the claim that followed a lost claim",
        execution.lose,
        "or report.claim != step.claim",
        "",
    ),
    Mutation(
        "look at no limit of a job",
        (
            Edit(TaskLanes._update, "not line.tasks or not line.may_start", "not line.tasks", {}),
            Edit(LimitedHandOver.send, "self._board.is_beyond_limit(claim)", "False", {}),
        ),
    ),
    bug(
        "hand over claims beyond their limit",
        LimitedHandOver.send,
        "self._board.is_beyond_limit(claim)",
        "False",
    ),
    bug(
        "hand a task over once",
        ClaimChecks._compare,
        "missing_claims.append(claim)",
        "pass",
    ),
    bug(
        "tell an agent of an end once",
        EndNotices.compare,
        "self._watch(agent, watch.held(unclaimed))",
        "pass",
    ),
    bug(
        "keep the claims of agents that are lost",
        ClaimChecks._look_at_agents,
        "if now - heard_at < SILENCE_S:",
        "if True:",
    ),
    bug(
        "accept a claim without a time limit",
        execution.lose,
        "step.claimed_at is not None and at >= step.claimed_at + lease_span(limit)",
        "False",
    ),
    bug(
        "go on after the last worker that may be lost",
        execution.lose,
        "if len(deaths) >= state.request.plan.max_deaths:",
        "if False:",
    ),
    bug(
        "take a report of a worker that lost the lease",
        execution.fail,
        "if report.claim not in {None, step.claim}:",
        "if False:",
    ),
    bug(
        "let expire what was started",
        execution.expiry,
        "or any(step.phase is Phase.STARTED for step in state.steps.values())",
        "",
    ),
    bug(
        "decide on silence before the successes that came first",
        Retrier.on_failure,
        "and _may_follow_success(recorded, states)",
        "and False",
    ),
    bug("try once more than allowed", execution.fail, "step.attempt < policy", "step.attempt <= policy"),
    bug("draw jitter twice as wide", retry.delay, "policy.jitter * draw", "2.0 * policy.jitter * draw"),
    bug(
        "keep half the attempts of a dead letter",
        dead_letter.attempts_of,
        "return tuple(attempts.values())",
        "return ()",
    ),
    bug(
        "take a request to replay twice", dead_letter.request_replay, "find_replay(state, request) is not None", "False"
    ),
    bug("decide a replay by what holds when it is handled", rerun._planned, "(job, fact.ledger)", "(job, None)"),
    bug(
        "settle a dead letter in the name of what failed",
        rerun.resolve_replayed,
        "execution_id=execution_id, reason=",
        "execution_id=letter, reason=",
    ),
    Mutation(
        "assign the tasks of a paused queue",
        (
            Edit(OperatorDecisions._learn_of_queue, "self._room = None", "self._room = {}"),
            Edit(OperatorDecisions.permits, "queue.is_paused or", ""),
        ),
    ),
    bug(
        "assign tasks before the decisions of operators are read",
        Matcher._knows_all,
        " and self._decisions.is_complete",
        "",
    ),
    bug(
        "purge what is dispatched later",
        TaskBoard._must_be_purged,
        "task.sequence <= self._purged_upto.get(task.queue, 0)",
        "bool(self._purged_upto.get(task.queue, 0))",
    ),
    Mutation(
        "give an agent what its name was not granted",
        (
            Edit(OperatorDecisions._granted, "granted_of(fact.grants, agent.queues, agent.functions)", "None"),
            Edit(OperatorDecisions.permits, "is_granted and", ""),
        ),
    ),
    bug(
        "hand over a claim beyond the limit of its queue",
        TaskBoard._limits_of,
        "self._open.running_in(queue)",
        "0",
    ),
    bug(
        "look at no decision again before claims are sent",
        Claims._may_be_claimed,
        "and self._decisions.permits(task, started)",
        "",
    ),
    bug(
        "claim for an agent that drains since it was chosen",
        Claims._takes_tasks,
        "heard is None or heard.takes_tasks",
        "True",
    ),
    bug(
        "assign what is disabled",
        OperatorDecisions.learn,
        "(self._disabled.discard if fact.enabled else self._disabled.add)",
        "self._disabled.discard",
    ),
    bug("hand over claims of an earlier owner", Owners.is_outdated, "before[-1].epoch != claim.epoch", "False"),
    Mutation(
        "give the tasks of owned shards to any worker",
        (
            Edit(TaskBoard._put, "None if task.shard in self._free_shards else shard_resource(task.shard)", "None"),
            Edit(Owners.permits, "if task.ownable is None:", "if task.resource is None:"),
            Edit(Owners.is_outdated, "if claim.task.ownable is None:", "if claim.task.resource is None:"),
        ),
    ),
    bug("move a shard while its owner works on it", Owners._change, "or self._works_on(before, resource)", ""),
    bug("keep a silent owner", OwnerCandidates.obstacle, '"silent" if', "None if"),
    bug("keep the executions of purged tasks", Purges.run_once, "self._board.purged(limit=AT_ONCE)", "()"),
    Mutation(
        "start beyond the limit of a queue",
        (
            Edit(TaskBoard.assign, "most - self._open.running_in(queue)", "most"),
            Edit(TaskBoard._limits_of, "self._queue_limits.get(queue)", "None"),
        ),
    ),
    Mutation(
        "fetch beyond limits",
        (
            Edit(TaskLanes._update, "not line.tasks or not line.may_start", "not line.tasks"),
            Edit(FetchServer._answer_proven, "self._board.is_beyond_limit(known)", "False"),
        ),
    ),
    bug(
        "use no token of a rate",
        QueueRates._store,
        "self._bucket(name).used(known[name][0], now, number)",
        "known[name][0]",
    ),
    bug(
        "count the silence of a released step from its request",
        recovery._stalled,
        "times.newest(other=times.released.get(name))",
        "times.newest()",
    ),
    bug(
        "hear a worker in a withdrawn fetch",
        HttpWorkers.hear,
        "if fetch.count:",
        "if True:",
    ),
    bug(
        "choose again for a fetch that has its answer",
        FetchServer._ready,
        "(known := self._fetches.answer_to(waiting.fetch)) is not None",
        "(known := ()) is None",
    ),
    bug(
        "believe a report without the proof of its claim",
        report_lists.authentic_report,
        "is_authentic and",
        "",
    ),
    bug("prove every claim of an attempt at once", ids.claim_proof, ":{claim or 0}", ""),
    bug(
        "believe a subject without its seal",
        report_lists.authentic_subject,
        "if compare_digest(reported.seal.encode(), ids.seal(proof, reported.job).encode())",
        "if proof",
    ),
    Mutation(
        "assign the lowest priority first",
        (
            Edit(TaskLanes._lanes_by_queue, "(-priority, 0, 0, name)", "(priority, 0, 0, name)"),
            Edit(TaskLanes._next, "function, -priority))", "function, priority))"),
        ),
    ),
    bug("read no priority of a task", FollowedTasks._dispatch, "priority=fact.priority", "priority=0"),
    bug(
        "dispatch a retry without its priority",
        tasks._task,
        "priority=step.priority",
        "priority=step.priority if attempt == 1 else 0",
    ),
    bug(
        "assign tasks to agents that drain",
        cast("property", HeardAgent.takes_tasks).fget or print,
        'self.mode == "enabled"',
        'self.mode != "disabled"',
    ),
    Mutation(
        "look at no hold list again before tasks are assigned",
        (Edit(Matcher._offers, "self.agents.read()", "pass"), Edit(Claims.store, "self._agents.read()", "pass")),
    ),
    bug("begin what arrives while the worker drains", Slots.occupy_now, "self._is_paused or", ""),
    bug(
        "stop what a draining worker runs",
        AgentAnnouncer._apply,
        "self._mode = mode",
        "self._mode = mode; [held.stop(StopReason.SHUTDOWN) for held in self._held_tasks if mode == 'draining']",
        StopReason=StopReason,
    ),
    bug("tell no agent that it drains", AgentKeeper._hear, "hold_list.mode != mode", "hold_list.mode == 'starting'"),
    bug(
        "admit the holder of a lock before its quorum",
        lifecycle.admit,
        "or state.is_held",
        "",
    ),
    bug(
        "keep the lock of an execution without a quorum",
        lock_keeper.LockKeeper._leave_lock,
        "job_lock.holder == request.execution_id",
        "False",
    ),
    bug(
        "need no majority of agents",
        quorum.needed,
        "max(rule.acknowledgements, agents // 2 + 1)",
        "rule.acknowledgements",
    ),
    bug(
        "count an answer to an earlier proposal",
        Acknowledgements._examine,
        "before.get(newest.sequence)",
        "next((each for each in before.values() if each.scope == scope), None)",
    ),
    bug(
        "count every agent that was asked",
        quorum.gather,
        "if agent in heard",
        "if heard",
    ),
    bug(
        "store an answer that is stored",
        quorum.gather,
        "in state.unheard() if",
        "in state.proposal.message.agents if",
    ),
    bug(
        "wait for no answers",
        Acknowledgements._examine,
        "answers.late_at <= now",
        "True",
    ),
    bug(
        "count the time of the leader before",
        acknowledgements._late_at,
        "max(now, newest.time)",
        "newest.time",
    ),
    bug(
        "propose once more than allowed",
        quorum.gather,
        "attempt >= of.rule.max_attempts",
        "attempt > of.rule.max_attempts",
    ),
    bug(
        "send a proposal once",
        Acknowledgements._examine,
        "now + REPEAT",
        "now + 1_000 * REPEAT",
    ),
    bug(
        "admit what no quorum acknowledged",
        lifecycle.skip_reason,
        'state.quorum.settled.outcome != "reached"',
        "False",
    ),
    bug(
        "move the recorder's place without the rows",
        Recorder.recorded,
        "batch.messages, after",
        "batch.messages[:3], after",
    ),
    bug("record from a place of one's own", Recorder.recorded, "upto=batch.upto", "upto=place"),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The cost of catching a bug. `violation`: the first violation; None: the bug was not caught."""

    name: str
    schedules: int
    seed: int | None = None
    violation: str | None = None


def judged(name: str, seeds: Sequence[int], engine: Engine | None = None) -> Verdict:
    """Play schedules with the bug of a name until one does not hold.

    Bugs of the engine show where several processes decide.
    """
    mutation = next(each for each in MUTATIONS if each.name == name)
    engine = engine or ("mixed" if mutation in ENGINE_MUTATIONS else None)
    with made(mutation):
        for played, seed in enumerate(seeds, start=1):
            result = play(seed, engine)
            if result.violations:
                return Verdict(name, played, seed, result.violations[0].partition("\n")[0])
    return Verdict(name, len(seeds))


FOCUSED: Final[Mapping[str, str]] = {
    "end a wait while the run of an instant is unknown": "dependencies",
    "give the tasks of owned shards to any worker": "shards",
    "announce no skip of an execution without a lock": "shards",
    "hand the lock on for no end by cancellation": "contention",
    "announce nothing again": "wakes",
    "hand over one attempt": "bridge",
    "report one attempt": "bridge",
    "decide a replay by what holds when it is handled": "letters",
    "accept a claim without a time limit": "leases",
    "look at no limit of a job": "agents",
    "hand a task over once": "agents",
    "keep the claims of agents that are lost": "agents",
    "take a request to replay twice": "letters",
    "take a report of a worker that lost the lease": "leases",
    "take an answer to what was never handed over": "bridge",
    "take an answer for the attempt that is current": "bridge",
    "assign the tasks of a paused queue": OPERATORS,
    "purge what is dispatched later": OPERATORS,
    "keep the executions of purged tasks": OPERATORS,
    "assign what is disabled": OPERATORS,
    "start beyond the limit of a queue": OPERATORS,
    "fetch beyond limits": OPERATORS,
    "use no token of a rate": OPERATORS,
    "count the silence of a released step from its request": OPERATORS,
    "believe a report without the proof of its claim": FORGERY,
    "prove every claim of an attempt at once": FORGERY,
    "believe a subject without its seal": FORGERY,
    "assign the lowest priority first": PRIORITIES,
    "read no priority of a task": PRIORITIES,
    "dispatch a retry without its priority": PRIORITIES,
    "assign tasks to agents that drain": DRAINS,
    "begin what arrives while the worker drains": DRAINS,
    "stop what a draining worker runs": DRAINS,
    "need no majority of agents": QUORUMS,
    "count an answer to an earlier proposal": QUORUMS,
    "count every agent that was asked": QUORUMS,
    "store an answer that is stored": QUORUMS,
    "wait for no answers": QUORUMS,
    "count the time of the leader before": QUORUMS,
    "propose once more than allowed": QUORUMS,
    "send a proposal once": QUORUMS,
    "admit what no quorum acknowledged": QUORUMS,
}
"""Bugs that ask for a coincidence, and the focus in which that is common."""

FOUND_BY_ONE_RULE: Final[Mapping[str, str]] = {
    name: rule
    for name, focus in FOCUSED.items()
    for of, rule in ((PRIORITIES, "PRIORITY"), (DRAINS, "DRAIN"))
    if focus == of
}
"""Bugs that only the rules about priorities and drains notice, and the name of the rule."""


CAUGHT_BY_TESTS: Final[Mapping[str, str]] = {
    "store claims of tasks that were undone": (
        "tests/commits/test_layouts.py::test_proposal_on_an_undone_event_is_refused"
    ),
    "keep what was decided although others stored first": (
        "tests/commits/test_layouts.py::test_eventless_decision_is_made_again"
    ),
    "replace a definition without its revision": (
        "tests/commits/test_edges.py::test_entry_that_another_process_replaced_is_read_again"
    ),
    "decide on an answer before the fold caught up": (
        "tests/commits/test_edges.py::test_answer_is_decided_after_what_led_to_it"
    ),
    "show a definition by a fold that lags": "tests/commits/test_edges.py::test_entry_is_replaced_by_newer_events_only",
    "decide on silence before the successes that came first": (
        "tests/commits/test_silence.py::test_success_before_a_report_of_silence_counts[recoverer]"
    ),
    "admit the holder of a lock before its quorum": (
        "tests/stages/test_acknowledgements.py::test_holder_of_a_lock_waits_for_agents"
    ),
    "keep the lock of an execution without a quorum": (
        "tests/stages/test_acknowledgements.py::test_skipped_holder_hands_its_lock_on"
    ),
    "tell no agent that it drains": "tests/stages/test_agent_keeper.py::test_drained_agent_is_commanded_until_it_drains",
    "let two claim one delivery": "tests/domain/test_execution.py::test_a_claim_is_granted_once_for_a_delivery",
    "let a redelivery take over what is leased": (
        "tests/domain/test_leases.py::test_leased_claim_survives_redelivery_by_the_queue"
    ),
    "release the claim that followed a lost claim": (
        "tests/domain/test_leases.py::test_report_of_a_lost_claim_comes_too_late[facts1-3]"
    ),
    "look at no decision again before claims are sent": (
        "tests/stages/test_operator_decisions.py::test_decision_counts_for_chosen_tasks[decision0]"
    ),
    "look at no hold list again before tasks are assigned": (
        "tests/stages/test_matcher.py::test_chosen_agent_that_drains_gets_nothing[disabled]"
    ),
    "claim for an agent that drains since it was chosen": (
        "tests/stages/test_matcher.py::test_chosen_agent_that_drains_gets_nothing[draining]"
    ),
    "hand over claims of an earlier owner": "tests/stages/test_owners.py::test_claim_for_an_earlier_leader_is_released",
    "move a shard while its owner works on it": "tests/stages/test_shard_owners.py::test_running_task_keeps_its_shard",
    "keep a silent owner": "tests/stages/test_owners.py::test_silent_leader_is_replaced_and_its_task_released",
    "assign tasks before the decisions of operators are read": (
        "tests/stages/test_operator_decisions.py::test_matcher_assigns_nothing_before_it_read_the_ledger"
    ),
    "give an agent what its name was not granted": (
        "tests/stages/test_operator_decisions.py::test_agent_gets_only_what_its_name_was_granted"
    ),
    "hand over a claim beyond the limit of its queue": (
        "tests/stages/test_matcher.py::test_claim_beyond_queue_limit_is_released"
    ),
    "hear a worker in a withdrawn fetch": (
        "tests/stages/test_matcher_fetches.py::test_withdrawn_fetch_is_no_sign_of_its_worker"
    ),
    "choose again for a fetch that has its answer": (
        "tests/stages/test_matcher_fetches.py::test_repeated_empty_fetch_stays_empty"
    ),
    "count the failure of an old delivery": (
        "tests/domain/test_execution.py::test_failure_of_an_earlier_delivery_does_not_count"
    ),
    "draw jitter twice as wide": "tests/domain/test_retry.py::test_i7_delay_is_the_formula_within_its_jitter",
    "hand over claims beyond their limit": "tests/stages/test_matcher.py::test_limit_holds_with_two_leaders",
    "tell an agent of an end once": "tests/stages/test_matcher_ends.py::test_lost_notice_is_repeated",
    "believe an answer without a token": (
        "tests/stages/test_mq_bridge.py::test_answer_with_a_guessed_token_is_refused"
    ),
    "forget the watermark when the clock is behind it": (
        "tests/domain/test_ledger_boundaries.py::test_clock_behind_the_watermark_decides_nothing_again"
    ),
    "look no more at what was named before a definition was replaced": (
        "tests/domain/test_ledger_boundaries.py::test_a_definition_of_later_is_looked_at_then"
    ),
    "look no more who is cancelled before it was let in": (
        "tests/stages/test_lock_keeper.py::test_holder_cancelled_before_its_admission_hands_on"
    ),
}
"""Bugs that hardly any schedule reaches since another guard stands before them, and the test that catches each."""


def seeds_of(name: str, *, first: int = 0, number: int) -> list[int]:
    """Return the seeds of the schedules to play with the bug of that name: those of its focus, if it has one."""
    focus = FOCUSED.get(name)
    first += first_of(focus) if focus else 0
    seeds = (seed for seed in count(first) if focus is None or focus_of(seed).name.startswith(focus))
    return list(islice(seeds, number))


def judged_by_focus(name: str, *, first: int, number: int) -> Verdict:
    """Play schedules of the bug's focus with the bug of that name until one does not hold."""
    return judged(name, seeds_of(name, first=first, number=number))
