"""Seeded schedules of faults, played in memory and judged by the invariants.

The product's own code runs (stages, worker, registry and everything below) on its in-memory adapters.

    loop, process     a loop whose time only jumps; processes with clocks of their own that pause and die.
    network, server   lost, late and repeated messages; late timers and lagging replicas.
    commits           the log of commits, and the processes that read it and store in it
    outside, mq       executors outside.
    operators         decisions about queues and agents.
    hand_over_rules   priorities, and agents that drain.
    quorum_rules      executions that agents acknowledge.
    focus, faults     the kind of trouble, and its rates, chosen by the seed
    workload          the actions of users
    judgement         after the faults end, everything must finish, and the audit must be clean

    python -m tests.simulation --seeds 10000            many schedules, on every core
    python -m tests.simulation --seed 4711 --trace      one schedule again, with a trace of everything
    python -m tests.simulation --mutations              the cost of catching each of many bugs
"""
