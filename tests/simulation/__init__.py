"""Seeded schedules of faults, played in memory and judged by the invariants.

The product's own code runs (stages, worker, registry and everything below) on its in-memory adapters, in simulated processes: a loop
whose time only jumps (`loop`), processes with clocks of their own that pause and die (`process`), a network that loses, delays and
repeats (`network`), a server whose timers are late and whose replicas lag (`server`), an archiver that removes finished executions
within seconds (`attic`), and executors outside (`outside`, `mq`). The seed chooses the focus (`focus`), the processes, the actions of
users (`workload`), and the faults with their rates (`faults`). After the faults end, everything must finish, and the audit must be
clean (`judgement`).

    python -m tests.simulation --seeds 10000            many schedules, on every core
    python -m tests.simulation --seed 4711 --trace      one schedule again, with a trace of everything
    python -m tests.simulation --mutations              the cost of catching each of many bugs
"""
