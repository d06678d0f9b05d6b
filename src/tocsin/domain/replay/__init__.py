"""The replay of a job's ledger, which explanations, timelines and what-if questions share.

The audit recomputes the past by its own code, on purpose.
"""

from .past import *
# ruff: noqa: F403 - the modules are one vocabulary, and each declares its names once
