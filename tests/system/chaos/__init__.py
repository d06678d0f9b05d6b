"""Chaos: for minutes, whatever can die or hang does, under a steady mixed load; then the whole log is audited.

    python -m tests.system.chaos --minutes 5 [--seed N] [--separate] [--json FILE]

Real processes on a real cluster of three: two copies of each stage, four workers, three NATS nodes. `plan` says who is struck
and when (all of it by the seed), `load` what is at work meanwhile, `strikes` carries the plan out, `outcome` is what the
audit, the history and the figures say in the end.
"""
