"""Health of an installation: its parts now, and their defects.

status.py     one look at all parts; a part that does not answer is listed with the reason
doctor.py     runs the checks
findings.py   the result of a check, and what every check is given
checks/       the checks, a module for each part of an installation

The same look serves the command line (`tocsin status`, `tocsin doctor`) and the HTTP API (`/v1/health`).
"""

from .doctor import CHECKS, examine
from .findings import Finding, Level, worst
from .status import HealthTarget, Status, status

__all__ = ["CHECKS", "Finding", "HealthTarget", "Level", "Status", "examine", "status", "worst"]
