"""How an installation is: what it consists of at this moment, and what is wrong with it.

status.py     one look at all of it; whatever cannot be asked is said, and the rest is told
doctor.py     the checks, each of which ends in findings
finding.py    what a check says: how bad it is, what it means, what to do
checks/       one module for each part that is looked at

The same look serves the command line (`tocsin status`, `tocsin doctor`) and the HTTP API (`/v1/health`).
"""

from .doctor import CHECKS, Options, examine
from .finding import Finding, Level, worst
from .status import Status, status

__all__ = ["CHECKS", "Finding", "Level", "Options", "Status", "examine", "status", "worst"]
