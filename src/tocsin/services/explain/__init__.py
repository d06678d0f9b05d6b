"""The reason why a job ran, or did not.

    PastReader (reads the log) ──Past──▶ judge ──▶ Answer ──execution──▶ Outcome

`judge` is pure: the same events give the same answer everywhere.
"""

from .judgement import *
from .reader import *
# ruff: noqa: F403 - the modules are one vocabulary, and each declares its names once
