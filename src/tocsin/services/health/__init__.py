"""Health of an installation: its parts now, and their defects."""

from .doctor import CHECKS, examine
from .findings import Finding, Level, worst
from .status import HealthTarget, Status, status

__all__ = ["CHECKS", "Finding", "HealthTarget", "Level", "Status", "examine", "status", "worst"]
