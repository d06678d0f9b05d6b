"""Health of an installation: its parts now, and their defects.

status.py     a look at all parts, with the reason where one does not answer, and its problems
doctor.py     runs the checks
findings.py   the result of a check, and its input
checks/       a module of checks for each part

The same look serves the command line (`tocsin status`, `tocsin doctor`) and the HTTP API (`/v1/health`).
"""

from .doctor import CHECKS, examine
from .findings import Finding, Level, worst
from .status import HealthTarget, Status, status

__all__ = ["CHECKS", "Finding", "HealthTarget", "Level", "Status", "examine", "status", "worst"]
