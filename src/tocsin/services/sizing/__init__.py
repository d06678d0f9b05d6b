"""Estimates of the disk, memory and CPU that an installation needs."""

from .constants import Constants, constants
from .estimate import Estimate, Limits, Load, estimate
from .execution_size import StreamSize, execution_size

__all__ = ["Constants", "Estimate", "Limits", "Load", "StreamSize", "constants", "estimate", "execution_size"]
