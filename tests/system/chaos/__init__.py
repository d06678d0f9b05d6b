"""Chaos: minutes of kills and pauses under a steady mixed load, then an audit of the whole log.

    python -m tests.system.chaos --minutes 5 [--seed N] [--separate] [--json FILE]

Real processes run on a real cluster of three: two copies of each stage, four workers, three NATS nodes. `plan` draws the targets and
times from the seed, `load` keeps the system busy, `strikes` carries the plan out, and `outcome` collects the audit, the history and
the figures.
"""
