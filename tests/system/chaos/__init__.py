"""Chaos: minutes of kills and pauses under a steady mixed load, then an audit of the whole log.

    python -m tests.system.chaos --minutes 5 [--attack] [--servers 1] [--seed N] [--separate] [--json FILE]

Real processes run on a real cluster of three, or on one server: two copies of each stage, four workers, three NATS nodes. `plan` draws
the targets and times from the seed, `load` keeps the system busy, `strikes` carries the plan out, and `outcome` collects the audit, the
history and the figures.

With `--attack`, the processes are users of the accounts that `tocsin permissions` generates, and the least privileged users attack
meanwhile: programs outside (`outsiders`), an agent's account (`hostile_agents`), a viewer of the API (`api_viewers`). The same verdict
must hold. A kind of attack of which nothing was sent, or everything was refused by an error, is a failure too, and so is an attack on
internal subjects that was not refused.
"""
