"""Whole schedules of trouble, played in memory from one seed each, and judged by the invariants.

The product's own code runs, stages, worker, registry and all that they are made of, on its in-memory adapters, in processes
that only seem to be: a loop in which no time passes (`loop`), processes with clocks of their own that stand still and die
(`process`), a network that loses, delays and repeats (`network`), a server whose timers are late and whose replicas lag
(`server`), an archiver that takes out in seconds what is over (`attic`), executors outside (`outside`, `mq`). A seed chooses
what it is all about (`focus`), who plays, what users do (`workload`), what goes wrong and how often (`faults`). Then comes
peace; everything must come to its end, and the audit finds nothing (`judgement`).

    python -m tests.simulation --seeds 10000            many schedules, on every core
    python -m tests.simulation --seed 4711 --trace      one again, with all that happened in it
    python -m tests.simulation --mutations              what each of many bugs costs until it is caught
"""
